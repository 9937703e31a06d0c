"""A server of the program under test, on a free port of loopback, with a data folder of its own."""
import json
import os
import re
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
import zlib

import pytest

PROGRAM = os.environ["H3AV"]
LONG = os.environ.get("H3_LONG") == "1"
os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"  # a proxy of this machine does not know its loopback
TINY = {"size": "32x32", "num_frames": 22, "steps": 2}  # some tenths of a second
# Still at work whenever something is done to it: many minutes on two cores, half a minute on a machine
# twenty times as fast. It is never waited for, only cancelled, deleted, or ended with its server. A step
# of it may take a minute where processors are slow; STEPPING is for tests that look at steps.
LASTING = {"size": "512x512", "num_frames": 124, "steps": 200}
STEPPING = {"size": "256x256", "num_frames": 124, "steps": 200}


def png(width=64, height=64, seed=0):
    """A small valid picture."""
    rows = b"".join(
        b"\0" + bytes((x * 3 + y * 5 + seed * 40 + c * 50) & 255 for x in range(width) for c in range(3))
        for y in range(height))

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def wav(seconds=2.0, rate=32000):
    n = int(seconds * rate)
    data = b"".join(struct.pack("<h", int(8000 * ((i * 440 // rate) % 2 * 2 - 1))) for i in range(n))
    return (b"RIFF" + struct.pack("<I", 36 + len(data)) + b"WAVEfmt " +
            struct.pack("<IHHIIHH", 16, 1, 1, rate, 2 * rate, 2, 16) + b"data" + struct.pack("<I", len(data)) + data)


def eventually(test, seconds=120, what="what was awaited"):
    """What `test` gives once it is true. Only a broken server lets the time run out."""
    until = time.monotonic() + seconds
    while not (value := test()):
        assert time.monotonic() < until, f"{what} did not come within {seconds} s"
        time.sleep(0.02)
    return value


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    @property
    def json(self):
        return json.loads(self.body)

    @property
    def error(self):
        return self.json["error"]


class Server:
    def __init__(self, *options, data=None, env=None, wait=True):
        self.own_data = data is None
        self.data = data or tempfile.mkdtemp(prefix="h3av-test-")
        self.options = list(options)
        self.env = dict(os.environ, **(env or {}))
        self.env.pop("H3AV_API_KEY", None)
        if env:
            self.env.update(env)
        self.process = None
        self.port = 0
        self.start(wait)

    def start(self, wait=True):
        self.log_path = os.path.join(tempfile.gettempdir(), f"h3av-test-{os.getpid()}-{id(self)}.log")
        self.log = open(self.log_path, "ab")
        # the same port after a restart: a client does not know that there was one. Until it is bound
        # again any program of this machine may have it for a moment.
        until = time.monotonic() + 60
        while True:
            at = len(self.text())
            self.process = subprocess.Popen(
                [PROGRAM, "serve", "--port", str(self.port), "--data", self.data, *self.options],
                stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log, env=self.env)
            if not wait:
                return
            try:
                return self.wait_ready(at)
            except RuntimeError:
                if not self.port or "cannot listen" not in self.text()[at:] or time.monotonic() > until:
                    raise
            time.sleep(0.2)

    def text(self):
        self.log.flush()
        with open(self.log_path, errors="replace") as f:
            return f.read()

    def wait_ready(self, at, seconds=300):
        """`at`: where the log of this start begins."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            if self.process.poll() is not None:
                raise RuntimeError(f"the server ended with {self.process.returncode}: {self.text()}")
            found = re.findall(r"listens on http://[^ ]*:(\d+)/", self.text()[at:])
            if found:
                self.port = int(found[-1])
                try:
                    if self.get("/ready").status == 200:
                        return
                except OSError:
                    pass
            time.sleep(0.02)
        raise RuntimeError("the server did not become ready: " + self.text())

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def request(self, method, path, body=None, headers=None, timeout=300):
        rq = urllib.request.Request(self.url + path, data=body, method=method, headers=headers or {})
        try:
            with urllib.request.urlopen(rq, timeout=timeout) as r:
                return Answer(r.status, r.headers, r.read())
        except urllib.error.HTTPError as e:
            return Answer(e.code, e.headers, e.read())

    def get(self, path, **kw):
        return self.request("GET", path, **kw)

    def post(self, path, fields=None, headers=None, **kw):
        return self.request("POST", path, json.dumps(fields or {}).encode(),
                            {"Content-Type": "application/json", **(headers or {})}, **kw)

    def delete(self, path, **kw):
        return self.request("DELETE", path, **kw)

    def form(self, fields, files=(), path="/v1/videos", headers=None, boundary="xBOUNDARYx"):
        """fields: [(name, text)], files: [(name, filename, type, bytes)]"""
        out = b""
        for name, text in fields:
            out += (f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n').encode()
            out += (text if isinstance(text, bytes) else str(text).encode()) + b"\r\n"
        for name, filename, kind, data in files:
            out += (f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"; filename="{filename}"\r\n'
                    f"Content-Type: {kind}\r\n\r\n").encode() + data + b"\r\n"
        out += f"--{boundary}--\r\n".encode()
        return self.request("POST", path, out, {"Content-Type": f"multipart/form-data; boundary={boundary}",
                                                **(headers or {})})

    def create(self, **fields):
        a = self.post("/v1/videos", {"prompt": "a test", **TINY, **fields})
        assert a.status == 200, a.body
        return a.json["id"]

    def wait(self, id, seconds=900):
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            v = self.get(f"/v1/videos/{id}").json
            if v["status"] in ("completed", "failed", "cancelled"):
                return v
            time.sleep(0.05)
        raise AssertionError(f"{id} did not end: {v}")

    def until(self, id, test=lambda v: v["status"] == "in_progress", seconds=300):
        """The job once `test` holds for it. One that has ended will not come there any more."""
        until = time.monotonic() + seconds
        while not test(v := self.get(f"/v1/videos/{id}").json):
            assert v["status"] in ("queued", "in_progress"), f"{id} ended too early: {v}"
            assert time.monotonic() < until, f"{id} did not come so far within {seconds} s: {v}"
            time.sleep(0.01)
        return v

    def drop(self, id):
        """Deletes a job, which may take its device more than one request's time to let go of."""
        return eventually(lambda: (a := self.delete(f"/v1/videos/{id}")).status != 409 and a)

    def socket(self, timeout=120):
        s = socket.create_connection(("127.0.0.1", self.port), timeout=timeout)
        s.settimeout(timeout)
        return s

    def raw(self, data, timeout=120, pieces=None):
        """Sends bytes as they are (cut at `pieces`), returns all that comes until the end."""
        s = self.socket(timeout)
        try:
            try:
                for piece in pieces or [data]:
                    s.sendall(piece)
            except OSError:
                pass  # answered and closed before the end: what it said is still there to read
            return read_answer(s)
        finally:
            s.close()

    def worker_pids(self):
        out = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/stat") as f:
                    if int(f.read().rsplit(")", 1)[1].split()[1]) == self.process.pid:
                        out.append(int(pid))
            except (OSError, ValueError):
                pass
        return out

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(120)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise AssertionError("the server did not stop within 120 s: " + self.text())
        return self.process.returncode

    def close(self):
        try:
            code = self.stop()
            text = self.text()
            assert "Sanitizer" not in text, text
            assert code in (0, -signal.SIGKILL), text
        finally:
            self.log.close()
            if os.path.exists(self.log_path):
                os.unlink(self.log_path)
            if self.own_data:
                shutil.rmtree(self.data, ignore_errors=True)


def read_answer(s):
    """One answer with a Content-Length, or all that comes until the end: it may come in pieces."""
    out = b""
    try:
        while not is_whole(out) and (got := s.recv(65536)):
            out += got
    except OSError:
        pass
    return out


def is_whole(data):
    """Is this one complete answer with a Content-Length?"""
    head, sep, body = data.partition(b"\r\n\r\n")
    found = re.search(rb"(?i)content-length: *(\d+)", head)
    return bool(sep and found and len(body) >= int(found.group(1)))


@pytest.fixture(scope="module")
def server():
    s = Server("--queue", "64")
    yield s
    s.close()


@pytest.fixture
def start():
    made = []

    def make(*options, **kw):
        made.append(Server(*options, **kw))
        return made[-1]

    yield make
    for s in made:
        s.close()


long = pytest.mark.skipif(not LONG, reason="H3_LONG=1 runs it")
