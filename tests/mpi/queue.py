"""Two servers, one PostgreSQL queue, one data folder: jobs accepted by either, one server killed at work."""
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

os.environ["NO_PROXY"] = os.environ["no_proxy"] = "*"  # a proxy of this machine does not know its loopback
data = sys.argv[1]


def is_ready(at):
    try:
        return urllib.request.urlopen(at + "/ready", timeout=300).status == 200
    except OSError:
        return False


def start(name):
    log = open(f"{data}-{name}.log", "ab")
    p = subprocess.Popen([os.environ["H3AV"], "serve", "--db", os.environ["URL"], "--data", data, "--port", "0",
                          "--checkpoint-every", "1", "--threads", "1"], stdout=log, stderr=log)
    for _ in range(6000):
        found = re.findall(r"listens on http://[^ ]*:(\d+)/", open(log.name).read())
        if found and is_ready(f"http://127.0.0.1:{found[-1]}"):
            return p, f"http://127.0.0.1:{found[-1]}"
        if p.poll() is not None:
            sys.exit(f"server {name} ended: " + open(log.name).read())
        time.sleep(0.05)
    sys.exit(f"server {name} does not listen")


def call(method, url, fields=None):
    rq = urllib.request.Request(url, method=method, data=json.dumps(fields).encode() if fields else None,
                                headers={"Content-Type": "application/json"})
    return json.load(urllib.request.urlopen(rq, timeout=300))


def wait_for(what, seconds, test):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if test():
            return
        time.sleep(0.05)
    for name in ("a", "b"):
        print(open(f"{data}-{name}.log").read())
    sys.exit("queue: " + what)


def accept(what, **fields):
    return call("POST", f"{at_a}/v1/videos", {"prompt": what, **fields})["id"]


def all_are(at, jobs, *allowed):
    return all(call("GET", f"{at}/v1/videos/{j}")["status"] in allowed for j in jobs)


a = b = None
try:
    a, at_a = start("a")
    b, at_b = start("b")
    for steps in (60, 200):  # a fast machine may be done before both are found at work: then longer ones
        long = [accept(f"long {i}", size="192x192", num_frames=56, steps=steps) for i in range(2)]
        wait_for("both servers take a job", 300, lambda: all_are(at_a, long, "in_progress", "completed"))
        if all_are(at_a, long, "in_progress"):
            break
    else:
        sys.exit("queue: no two jobs at work at the same time")
    a.send_signal(signal.SIGKILL)  # its worker process goes with it
    a.wait()
    short = call("POST", f"{at_b}/v1/videos", {"prompt": "short", "size": "32x32", "num_frames": 22, "steps": 2})["id"]
    wait_for("all jobs end on the server that is left", 900, lambda: all_are(at_b, long + [short], "completed"))
    listed = [v["id"] for v in call("GET", f"{at_b}/v1/videos")["data"]]
    assert set(long + [short]) <= set(listed), listed
    for j in long + [short]:
        assert len(urllib.request.urlopen(f"{at_b}/v1/videos/{j}/content", timeout=300).read()) > 1000
    # asked to stop through the other server
    a, at_a = start("a")
    more = [accept(f"more {i}", size="512x512", num_frames=124, steps=200) for i in range(2)]  # many minutes
    wait_for("both servers take a job again", 300, lambda: all_are(at_a, more, "in_progress"))
    for j in more:  # one of the two runs elsewhere
        call("POST", f"{at_a}/v1/videos/{j}/cancel")
    wait_for("both are cancelled", 300, lambda: all_are(at_a, more, "cancelled"))
finally:
    for p in (a, b):
        if p and p.poll() is None:
            p.terminate()
            p.wait()
left = [d for d in os.listdir(data) if d.startswith("spool")]
assert not left or len(left) == 1, left  # the killed server's
print("queue: two servers, one of them killed, every job ended once")
