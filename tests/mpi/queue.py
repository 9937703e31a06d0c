"""Two servers, one PostgreSQL queue, one data folder: jobs accepted by either, one server killed at work."""
import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request

data = sys.argv[1]


def is_ready(at):
    try:
        return urllib.request.urlopen(at + "/ready", timeout=30).status == 200
    except OSError:
        return False


def start(name):
    log = open(f"{data}-{name}.log", "ab")
    p = subprocess.Popen([os.environ["H3AV"], "serve", "--db", os.environ["URL"], "--data", data, "--port", "0",
                          "--checkpoint-every", "1", "--threads", "1"], stdout=log, stderr=log)
    for _ in range(600):
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
    return json.load(urllib.request.urlopen(rq, timeout=30))


def wait_for(what, seconds, test):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if test():
            return
        time.sleep(0.05)
    for name in ("a", "b"):
        print(open(f"{data}-{name}.log").read())
    sys.exit("queue: " + what)


a, at_a = start("a")
b, at_b = start("b")
status = lambda at, job: call("GET", f"{at}/v1/videos/{job}")["status"]
try:
    # long enough to be found at work
    long = [call("POST", f"{at_a}/v1/videos", {"prompt": f"long {i}", "size": "192x192", "num_frames": 56, "steps": 60})["id"]
            for i in range(2)]
    wait_for("both servers take a job", 30, lambda: all(status(at_a, j) == "in_progress" for j in long))
    a.send_signal(signal.SIGKILL)  # its worker process goes with it
    a.wait()
    short = call("POST", f"{at_b}/v1/videos", {"prompt": "short", "size": "32x32", "num_frames": 22, "steps": 2})["id"]
    wait_for("all jobs end on the server that is left", 300,
             lambda: all(status(at_b, j) == "completed" for j in long + [short]))
    listed = [v["id"] for v in call("GET", f"{at_b}/v1/videos")["data"]]
    assert set(long + [short]) <= set(listed), listed
    for j in long + [short]:
        assert len(urllib.request.urlopen(f"{at_b}/v1/videos/{j}/content", timeout=30).read()) > 1000
    # asked to stop through the other server
    a, at_a = start("a")
    more = [call("POST", f"{at_a}/v1/videos", {"prompt": f"more {i}", "size": "192x192", "num_frames": 56, "steps": 190})["id"]
            for i in range(2)]
    wait_for("both servers take a job again", 30, lambda: all(status(at_a, j) == "in_progress" for j in more))
    for j in more:  # one of the two runs elsewhere
        call("POST", f"{at_a}/v1/videos/{j}/cancel")
    wait_for("both are cancelled", 30, lambda: all(status(at_a, j) == "cancelled" for j in more))
finally:
    for p in (a, b):
        if p.poll() is None:
            p.terminate()
            p.wait()
left = [d for d in os.listdir(data) if d.startswith("spool")]
assert not left or len(left) == 1, left  # the killed server's
print("queue: two servers, one of them killed, every job ended once")
