"""Death at any moment, disks that fill up, folders that cannot be written."""
import http.client
import os
import random
import signal
import sqlite3
import subprocess
import threading
import time

import pytest

from conftest import LASTING, LONG, PROGRAM, TINY, eventually, png

RESUMABLE = {"size": "128x128", "num_frames": 56, "steps": 40}


def jobs_of(s):
    jobs, after = {}, ""
    while True:
        page = s.get(f"/v1/videos?limit=100{after}").json
        jobs.update({v["id"]: v for v in page["data"]})
        if not page["has_more"]:
            return jobs
        after = f"&after={page['last_id']}"


def disagreements(s, jobs):
    """What of the data folder is not as the jobs say."""
    for id in os.listdir(os.path.join(s.data, "jobs")):
        if id not in jobs:
            yield f"a folder without a job: {id}"
    for id, v in jobs.items():
        folder = os.path.join(s.data, "jobs", id)
        names = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        if [n for n in names if n.startswith(".")] and v["status"] != "in_progress":
            yield f"half written: {v['status']}, {names}"
        if v["status"] == "completed":
            if not {"video.mp4", "sound.wav", "thumbnail.png"} <= names or names & {"checkpoint", "latents"}:
                yield f"completed, with {names}"
            a = s.get(f"/v1/videos/{id}/content")
            if a.status != 200 or a.body[4:8] != b"ftyp" or b"moov" not in a.body:
                yield f"no video: {a.status} {a.body[:200]}"
    if spool := os.listdir(os.path.join(s.data, "spool")):
        yield f"in the spool: {spool}"


def files_agree_with_jobs(s):
    """Every folder has its job, every finished job its files, nothing half written lies around.

    Jobs go on while this looks, and an end is told before its folder is tidied: what is wrong for good
    is what stays wrong.
    """
    found = []

    def is_well():
        jobs = jobs_of(s)
        found[:] = [jobs, list(disagreements(s, jobs))]
        return not found[1]

    try:
        eventually(is_well)
    except AssertionError:
        raise AssertionError(found[1]) from None
    db = sqlite3.connect(os.path.join(s.data, "jobs.sqlite"), timeout=120)
    assert db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    db.close()
    return found[0]


def sampled(v, steps):
    """True when the job has done so many steps of sampling (other phases count their own), or has ended."""
    return v["status"] not in ("queued", "in_progress") or (v.get("phase") == "sample" and v["step"] >= steps)


def test_running_job_goes_on_from_its_checkpoint(start):
    s = start("--max-steps", "1000")
    for steps in (40, 200, 1000):  # a fast machine may be done before it is killed: then a longer one
        id = s.create(**{**RESUMABLE, "steps": steps}, seed=9)
        waits = s.create(seed=1)
        folder = os.path.join(s.data, "jobs", id)
        eventually(lambda: sampled(s.get(f"/v1/videos/{id}").json, 10), 600)
        s.kill()
        # saved after each step is told: of ten that are told nine are there
        is_caught = os.path.exists(os.path.join(folder, "checkpoint"))
        s.start()
        v = s.get(f"/v1/videos/{id}").json
        if is_caught and v["status"] in ("queued", "in_progress"):
            break
        s.wait(id)
        s.wait(waits)
    else:
        raise AssertionError(f"no job was caught at work: {v}")
    first = None
    while (v := s.get(f"/v1/videos/{id}").json)["status"] in ("queued", "in_progress"):
        if v.get("phase") == "sample" and v["step"] and first is None:
            first = v["step"]
        time.sleep(0.01)
    whole = s.wait(s.create(**{**RESUMABLE, "steps": steps}, seed=9))["latents"]
    assert v["status"] == "completed" and v["latents"] == whole  # bit for bit
    assert first is None or first >= 10, first
    assert s.wait(waits)["status"] == "completed"
    files_agree_with_jobs(s)


def test_stop_and_start_lose_nothing(start):
    s = start()
    ids = [s.create(**RESUMABLE), *[s.create() for _ in range(3)]]
    eventually(lambda: sampled(s.get(f"/v1/videos/{ids[0]}").json, 3), 600)
    assert s.stop() == 0
    s.start()
    for id in ids:
        assert s.wait(id)["status"] == "completed"
    files_agree_with_jobs(s)


def test_cancel_is_remembered_over_a_kill(start):
    s = start()
    id = s.create(**LASTING)
    s.until(id)
    for pid in s.worker_pids():
        os.kill(pid, signal.SIGSTOP)  # a device that hangs: it will not stop by itself
    a = s.post(f"/v1/videos/{id}/cancel")
    assert a.json["status"] == "in_progress" and a.json["cancel_requested"] is True
    s.kill()
    s.start()
    assert s.get(f"/v1/videos/{id}").json["status"] == "cancelled"


def test_a_hanging_device_is_freed(start):
    s = start()
    id = s.create(**LASTING)
    s.until(id)
    for pid in s.worker_pids():
        os.kill(pid, signal.SIGSTOP)
    a = s.delete(f"/v1/videos/{id}")  # waits for the worker process to be ended
    assert a.status == 200 and a.json["deleted"]
    assert s.wait(s.create())["status"] == "completed"


def test_workers_do_not_outlive_their_server(start):
    s = start()
    s.until(s.create(**LASTING), lambda v: v.get("phase") == "sample")
    pids = s.worker_pids()
    assert pids
    s.kill()

    def is_alive(pid):
        try:
            with open(f"/proc/{pid}/stat") as f:
                return f.read().rsplit(")", 1)[1].split()[0] not in "ZX"
        except OSError:
            return False

    eventually(lambda: not any(map(is_alive, pids)), what="the end of the workers")


def test_kill_at_random_moments(start):
    """30 times kill -9 (8 in the short run) while jobs come in, run and are deleted."""
    rng = random.Random(4)
    s = start("--queue", "500")
    accepted, deleted = {}, set()
    lock = threading.Lock()
    stop = threading.Event()

    def client(n):
        r = random.Random(n)
        while not stop.is_set():
            try:
                if r.random() < 0.6:
                    files = [("first_frame", "a.png", "image/png", png(64, 64, n))] if r.random() < 0.3 else []
                    a = s.form([("prompt", f"client {n}"), ("size", "32x32"), ("num_frames", 22),
                                ("steps", r.choice([2, 30]))], files)
                    if a.status == 200:
                        with lock:
                            accepted[a.json["id"]] = a.json
                else:
                    with lock:
                        mine = [i for i in accepted if i not in deleted]
                    if mine:
                        id = r.choice(mine)
                        with lock:
                            deleted.add(id)  # asked for: whether it took effect is open when the server dies
                        s.delete(f"/v1/videos/{id}")
            except OSError:
                time.sleep(0.02)
            except (ValueError, http.client.HTTPException):
                pass  # an answer cut off in the middle
            time.sleep(0.05)

    threads = [threading.Thread(target=client, args=(n,)) for n in range(3)]
    [t.start() for t in threads]
    for _ in range(30 if LONG else 8):
        time.sleep(rng.uniform(0.05, 1.2))
        s.kill()
        s.start()
    stop.set()
    [t.join() for t in threads]
    jobs = files_agree_with_jobs(s)
    lost = [i for i in accepted if i not in jobs and i not in deleted]
    assert not lost, lost
    running = [i for i in jobs if jobs[i]["status"] in ("queued", "in_progress")]
    for id in running[(30 if LONG else 6):]:
        s.drop(id)
    for id in running[:(30 if LONG else 6)]:
        v = s.wait(id)
        assert v["status"] == "completed", v
    jobs = files_agree_with_jobs(s)
    print(f"{len(accepted)} accepted, {len(jobs)} kept, {len(deleted)} deleted")
    assert not [v for v in jobs.values() if v["status"] == "failed"]


@pytest.fixture
def small_disk(tmp_path):
    path = tmp_path / "disk"
    path.mkdir()
    r = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", str(path)], capture_output=True)
    if r.returncode:
        pytest.skip("no right to mount a small disk here")
    yield str(path)
    subprocess.run(["umount", "-l", str(path)], check=True)


def test_full_disk(start, small_disk):
    s = start(data=small_disk + "/data")
    assert s.wait(s.create())["status"] == "completed"
    files_agree_with_jobs(s)  # what the job no longer needs is gone, and makes no room later
    filler = os.path.join(small_disk, "filler")
    with open(filler, "wb", buffering=0) as f:
        try:
            while f.write(b"x" * 4096):
                pass
        except OSError:
            pass
    # refused with a reason, and not to be tried again; or stored in what SQLite still had free
    a = s.form([("prompt", "x"), *TINY.items()], [("first_frame", "a.png", "image/png", png(256, 256))])
    assert a.status == 507 and a.error["code"] == "storage_full" and a.headers["x-should-retry"] == "false", a.body
    tried = [s.post("/v1/videos", {"prompt": "y" * 20000, **TINY}) for _ in range(3)]
    assert {t.status for t in tried} <= {200, 507}
    assert s.get("/ready").status == 503
    assert s.get("/health").status == 200
    os.unlink(filler)
    for t in tried:
        if t.status == 200:
            v = s.wait(t.json["id"])
            assert v["status"] in ("completed", "failed"), v
            if v["status"] == "failed":
                assert v["error"]["code"] == "storage_error" and small_disk not in v["error"]["message"], v
    assert s.get("/ready").status == 200
    assert s.wait(s.create())["status"] == "completed"
    files_agree_with_jobs(s)


def test_data_folder_that_cannot_be_used(start, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    for bad in (str(file), str(file / "below"), "/proc/self/x"):
        r = subprocess.run([PROGRAM, "serve", "--port", "0", "--data", bad], capture_output=True, text=True, timeout=300)
        assert r.returncode == 3 and "data folder" in r.stderr, r
    s = start()
    r = subprocess.run([PROGRAM, "serve", "--port", "0", "--data", s.data], capture_output=True, text=True, timeout=300)
    assert r.returncode == 3 and "in use" in r.stderr, r
    r = subprocess.run([PROGRAM, "serve", "--port", str(s.port), "--data", str(tmp_path / "d")], capture_output=True, text=True, timeout=300)
    assert r.returncode == 3 and "cannot listen" in r.stderr, r


def test_damaged_database_is_not_used(start, tmp_path):
    d = tmp_path / "d"
    d.mkdir()
    (d / "jobs.sqlite").write_bytes(b"SQLite format 3\0" + os.urandom(20000))
    r = subprocess.run([PROGRAM, "serve", "--port", "0", "--data", str(d)], capture_output=True, text=True, timeout=300)
    assert r.returncode == 3 and "jobs.sqlite" in r.stderr, r


def test_model_that_is_not_there(tmp_path):
    r = subprocess.run([PROGRAM, "serve", "--port", "0", "--data", str(tmp_path / "d"), "--model", str(tmp_path / "none")],
                       capture_output=True, text=True, timeout=300)
    assert r.returncode not in (0, 70, -11) and "none" in r.stderr, r


def test_files_that_vanish(start):
    s = start()
    id = s.create()
    s.wait(id)
    os.unlink(os.path.join(s.data, "jobs", id, "video.mp4"))
    a = s.get(f"/v1/videos/{id}/content")
    assert a.status == 404 and a.error["code"] == "content_missing"
    assert s.delete(f"/v1/videos/{id}").status == 200


def test_hostile_uploads_harm_only_themselves(start):
    """Cut, flipped and stretched pictures: refused or failed, and the server goes on."""
    s = start()
    rng = random.Random(6)
    whole = png(64, 64)
    for i in range(40 if LONG else 12):
        data = bytearray(whole)
        for _ in range(rng.randrange(1, 6)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.3:
            data = data[:rng.randrange(1, len(data))]
        a = s.form([("prompt", "x"), *TINY.items()], [("first_frame", "a.png", "image/png", bytes(data))])
        assert a.status in (200, 400), a.body
        if a.status == 200:
            s.delete(f"/v1/videos/{a.json['id']}")
    assert s.wait(s.create())["status"] == "completed"
