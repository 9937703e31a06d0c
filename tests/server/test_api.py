"""Routes, fields, errors, jobs: what curl and other programs see."""
import base64
import json
import os
import threading
import time
import urllib.request

import pytest

from conftest import LASTING, LONG, STEPPING, TINY, eventually, long, png, wav


def bad(a, status, code, param=None):
    assert a.status == status, a.body
    e = a.error
    assert set(e) == {"message", "type", "param", "code"}
    assert e["code"] == code and e["message"]
    if param is not None:
        assert e["param"] == param
    return e["message"]


def drop(server, *answers):
    for a in answers:
        assert server.drop(a.json["id"]).status == 200


def data_url(data, kind="image/png"):
    return f"data:{kind};base64," + base64.b64encode(data).decode()


# ------------------------------------------------------------------------------------------ fields

def test_json_and_form_mean_the_same(server):
    a = server.post("/v1/videos", {"prompt": "x", "size": "32x32", "num_frames": 22, "steps": 2, "seed": 3})
    b = server.form([("prompt", "x"), ("size", "32x32"), ("num_frames", "22"), ("steps", "2"), ("seed", "3")])
    assert a.status == b.status == 200
    for key in ("size", "frames", "seed", "steps", "prompt", "task"):
        assert a.json[key] == b.json[key]
    drop(server, a, b)


@pytest.mark.parametrize("extra", [
    {"extra_params": {"duration": 0.9, "task": "t2va"}},
    {"extra_params": '{"duration": "0.9", "task": "T2VA"}'},
    {"extra_body": {"extra_params": {"duration": 0.9}}},
    {"seconds": "0.9"}, {"seconds": 0.9}, {"duration": "0.9"}, {"frames": 22}, {"num_frames": "5"},
    {"target": {"duration_seconds": 0.9, "short_edge": 768}},
    {"task": "auto", "seconds": 0.9, "user": "me", "quality": "high", "n": 1, "fps": 24, "guidance_scale": 1.0,
     "negative_prompt": "", "generate_sound": True, "lora": None, "seed": 7}])
def test_lengths_and_extras(server, extra):
    a = server.post("/v1/videos", {"prompt": "x", "size": "32x32", "steps": 2, **extra})
    assert a.status == 200, a.body
    assert a.json["frames"] == 22 and a.json["seconds"] == "0.917"
    drop(server, a)


@pytest.mark.parametrize("seconds,frames", [("0.95", 39), ("1", 39), (0.001, 22), ("4.46", 124), ("10", 243)])
def test_true_length_is_told(server, seconds, frames):
    a = server.post("/v1/videos", {"prompt": "x", "size": "32x32", "steps": 2, "seconds": seconds})
    assert a.json["frames"] == frames
    server.delete(f"/v1/videos/{a.json['id']}")


@pytest.mark.parametrize("fields,param,code", [
    ({"prompt": None}, "prompt", "missing_field"),
    ({"prompt": ""}, "prompt", "missing_field"),
    ({"prompt": " \n\t"}, "prompt", "missing_field"),
    ({"prompt": 5}, "prompt", "invalid_type"),
    ({"prompt": "x" * 70000}, "prompt", "too_long"),
    ({"refrences": []}, "refrences", "unknown_field"),
    ({"extra_params": {"refrences": 1}}, "extra_params.refrences", "unknown_field"),
    ({"extra_params": "{"}, "extra_params", "invalid_type"),
    ({"extra_params": "[1]"}, "extra_params", "invalid_type"),
    ({"size": "32"}, "size", "invalid_value"), ({"size": "32x"}, "size", "invalid_value"),
    ({"size": "-32x32"}, "size", "invalid_value"), ({"size": "32x32x"}, "size", "invalid_value"),
    ({"size": "9999x9999"}, "size", "too_large"), ({"size": 32}, "size", "invalid_value"),
    ({"size": "33x32"}, None, "invalid_value"),
    ({"width": 32}, "width", "invalid_value"),
    ({"seconds": -1}, "seconds", "invalid_value"), ({"seconds": "5s"}, "seconds", "invalid_value"),
    ({"seconds": "NaN"}, "seconds", "invalid_value"), ({"seconds": 0}, "seconds", "invalid_value"),
    ({"seconds": 1e9}, "seconds", "invalid_value"), ({"seconds": "0x5"}, "seconds", "invalid_value"),
    ({"seconds": 31}, "seconds", "too_large"), ({"num_frames": 2 ** 31}, "num_frames", "invalid_value"),
    ({"num_frames": 22, "seconds": 3}, "num_frames", "duplicate_field"),
    ({"steps": 1}, "steps", "invalid_value"), ({"steps": 201}, "steps", "too_large"),
    ({"steps": 3, "num_inference_steps": 4}, "num_inference_steps", "duplicate_field"),
    ({"seed": -1}, "seed", "invalid_value"), ({"seed": 1.5}, "seed", "invalid_value"),
    ({"seed": True}, "seed", "invalid_value"),
    ({"fps": 30}, "fps", "unsupported_value"), ({"n": 2}, "n", "unsupported_value"),
    ({"guidance_scale": 5}, "guidance_scale", "unsupported_value"),
    ({"negative_prompt": "blur"}, "negative_prompt", "unsupported_field"),
    ({"generate_sound": False}, "generate_sound", "unsupported_value"),
    ({"lora": {"name": "x"}}, "lora", "unsupported_field"),
    ({"model": "other"}, "model", "model_not_found"),
    ({"task": "ref2va"}, "task", "invalid_value"), ({"task": "fl2va"}, "task", "invalid_value"),
    ({"task": "t2v"}, "task", "invalid_value"),
    ({"aspect_ratio": "wide"}, "aspect_ratio", "invalid_value"),
    ({"aspect_ratio": "9:1"}, None, "invalid_value"),
    ({"frame_indices": [1]}, "frame_indices", "invalid_value"),
    ({"sigmas": [0.5, 1]}, "sigmas", "invalid_value"),
    ({"input_reference": "/etc/passwd"}, "input_reference", "invalid_url"),
    ({"input_reference": {"image_url": "file:///etc/passwd"}}, "input_reference", "invalid_url"),
    ({"input_reference": {"image_url": "http://127.0.0.1/x.png"}}, "input_reference", "fetch_disabled"),
    ({"input_reference": {"file_id": "file-1"}}, "input_reference", "unsupported_value"),
    ({"input_reference": {"$upload": 0}}, "input_reference", "invalid_value"),
    ({"input_reference": {"image_url": "data:image/png;base64,AAA"}}, None, "invalid_file"),
    ({"input_reference": {"image_url": "data:image/png;base64,A"}}, "input_reference", "invalid_url"),
    ({"input_reference": {"image_url": "data:image/png,AAAA"}}, "input_reference", "invalid_url"),
    ({"input_reference": {"image_url": "data:image/png;base64,%%%%"}}, "input_reference", "invalid_url"),
    ({"input_reference": {}, "task": "fl2va"}, "task", "invalid_value"),
    ({"conditions": [{"type": "image", "uri": "file:///etc/passwd"}]}, "conditions", "invalid_url"),
])
def test_bad_fields(server, fields, param, code):
    rq = {"prompt": "x", **fields}
    bad(server.post("/v1/videos", rq), 400, code, param)


@pytest.mark.parametrize("body", [b"{", b"[]", b"null", b'{"prompt":"x","prompt":"y"}', b'{"prompt":"\xff"}',
                                  b'{"prompt":"a\\u0000b"}', b"[" * 100000, b'{"a":' * 5000])
def test_bad_json(server, body):
    bad(server.request("POST", "/v1/videos", body, {"Content-Type": "application/json"}), 400, "invalid_json")


def test_bad_types_and_paths(server):
    bad(server.request("POST", "/v1/videos", b"prompt=x", {"Content-Type": "application/x-www-form-urlencoded"}),
        415, "unsupported_content_type")
    bad(server.get("/v1/nothing"), 404, "not_found")
    bad(server.get("/v1/videos/../../etc/passwd"), 404, "not_found")
    bad(server.get("/v1/videos/..%2f..%2fjobs.sqlite/content"), 404, "not_found")
    bad(server.get("/v1/videos/video_" + "0" * 44), 404, "video_not_found")
    bad(server.get("/v1/videos/video_" + "0" * 44 + "%00"), 404, "video_not_found")
    bad(server.get("/v1/videos/video_" + "0" * 44 + "/events"), 404, "video_not_found")
    a = server.request("PUT", "/v1/videos", b"{}")
    bad(a, 405, "method_not_allowed")
    assert a.headers["Allow"] == "POST, GET"
    bad(server.get("/v1/videos?limit=0"), 400, "invalid_value", "limit")
    bad(server.get("/v1/videos?limit=101"), 400, "invalid_value", "limit")
    bad(server.get("/v1/videos?limit=1x"), 400, "invalid_value", "limit")
    bad(server.get("/v1/videos?order=up"), 400, "invalid_value", "order")
    bad(server.get("/v1/videos?after=1%27--"), 400, "invalid_value", "after")


# ---------------------------------------------------------------------------------------- inputs

def test_keyframes_and_references(server):
    pic = png(96, 96)
    a = server.form([("prompt", "x"), ("num_frames", 22), ("steps", 2), ("size", "32x32")],
                    [("first_frame", "a.png", "image/png", pic), ("last_frame", "b.png", "image/png", png(96, 96, 1))])
    assert a.status == 200 and a.json["task"] == "fl2va" and a.json["inputs"] == 2, a.body
    b = server.form([("prompt", "x"), ("num_frames", 22), ("steps", 2), ("size", "32x32")],
                    [("input_references", "a.png", "image/png", pic), ("input_references", "s.wav", "audio/wav", wav())])
    assert b.status == 200 and b.json["task"] == "ref2va" and b.json["inputs"] == 2, b.body
    c = server.post("/v1/videos", {"prompt": "x", "num_frames": 22, "steps": 2, "size": "32x32",
                                   "frame_indices": [0, -1], "input_references": [data_url(pic), {"image_url": {"url": data_url(pic)}}]})
    assert c.status == 200 and c.json["task"] == "fl2va", c.body
    d = server.post("/v1/videos", {"prompt": "x", "num_frames": 22, "steps": 2, "size": "32x32", "conditions": [
        {"type": "image", "uri": data_url(pic), "role": "keyframe", "frame_index": -1}]})
    assert d.status == 200 and d.json["task"] == "fl2va", d.body
    e = server.form([("prompt", "x"), ("num_frames", 22), ("steps", 2), ("size", "32x32"),
                     ("image_reference", json.dumps({"image_url": data_url(pic)}))])
    assert e.status == 200 and e.json["task"] == "ref2va", e.body
    drop(server, b, d, e)  # references are seen at full size: seconds each on this model
    for a in (a, c):
        v = server.wait(a.json["id"])
        assert v["status"] == "completed", v


@long
def test_references_of_all_kinds_run(server):
    import subprocess
    import tempfile
    with tempfile.TemporaryDirectory() as d:
        subprocess.run(["ffmpeg", "-v", "error", "-f", "lavfi", "-i", "testsrc=s=320x256:d=2:r=24", "-f", "lavfi",
                        "-i", "sine=d=2", "-shortest", f"{d}/c.mp4"], check=True)
        clip = open(f"{d}/c.mp4", "rb").read()
    for files in ([("input_references", "a.png", "image/png", png()), ("input_references", "s.wav", "audio/wav", wav())],
                  [("video_reference", "c.mp4", "video/mp4", clip)]):
        a = server.form([("prompt", "x"), *TINY.items(), ("reference_sound", "auto")], files)
        assert a.status == 200, a.body
        assert server.wait(a.json["id"], 600)["status"] == "completed"


def test_canvas_follows_the_first_frame(server):
    a = server.form([("prompt", "x"), ("num_frames", 22), ("steps", 2)],
                    [("input_reference", "a.png", "image/png", png(160, 90))])
    assert a.status == 200 and a.json["width"] > a.json["height"] > 0, a.body
    server.delete(f"/v1/videos/{a.json['id']}")


def test_bad_uploads(server):
    base = [("prompt", "x"), *[(k, v) for k, v in TINY.items()]]
    m = bad(server.form(base, [("input_reference", "secret.txt", "image/png", b"root:x:0:0")]), 400, "invalid_file")
    assert "secret.txt" in m and server.data not in m and "/" not in m.replace("picture/", "")
    bad(server.form(base, [("input_reference", "a.png", "image/png", b"")]), 400, "empty_file", "input_reference")
    bad(server.form(base, [("input_reference", "a.png", "image/png", png()[:60])]), 400, "invalid_file")
    bad(server.form(base, [("first_frame", "s.wav", "audio/wav", wav())]), 400, "invalid_file")
    bad(server.form(base, [("audio_reference", "s.wav", "audio/wav", wav())]), 400, "invalid_value", "input_references")
    bad(server.form(base, [("input_references", "a.png", "image/png", png())] * 10), 400, "too_many_references")
    bad(server.form(base, [("input_references", "a.png", "image/png", png())] * 17), 400, "too_many_files")
    bad(server.form(base, [("first_frame", "a.png", "image/png", png())] * 2), 400, "duplicate_field", "first_frame")
    bad(server.form(base, [("first_frame", "a.png", "image/png", png()), ("video_reference", "b.png", "image/png", png())]),
        400, "invalid_value", "first_frame")
    bad(server.form([*base, ("task", "t2va")], [("input_reference", "a.png", "image/png", png())]), 400, "invalid_value", "task")
    bad(server.form([*base, ("prompt", "again")]), 400, "invalid_type", "prompt")
    bad(server.form([*base, ("size", "32x32")]), 400, "invalid_value", "size")
    bad(server.form([*base, ("note", "x")]), 400, "unknown_field", "note")
    bad(server.form([*base], [("prompt", "a.txt", "text/plain", b"hello")]), 400, "invalid_type", "prompt")


# ------------------------------------------------------------------------------------------ jobs

def test_content_headers_and_ranges(server):
    id = server.create()
    assert server.wait(id)["status"] == "completed"
    path = f"/v1/videos/{id}/content"
    whole = server.get(path)
    n = len(whole.body)
    assert whole.headers["Content-Type"] == "video/mp4" and whole.headers["Accept-Ranges"] == "bytes"
    assert int(whole.headers["Content-Length"]) == n and f"{id}.mp4" in whole.headers["Content-Disposition"]
    for text, lo, hi in (("0-9", 0, 10), (f"{n - 5}-", n - 5, n), ("-7", n - 7, n), ("5-99999999", 5, n), ("-99999999", 0, n)):
        a = server.get(path, headers={"Range": f"bytes={text}"})
        assert a.status == 206 and a.body == whole.body[lo:hi], text
        assert a.headers["Content-Range"] == f"bytes {lo}-{hi - 1}/{n}"
    for text in (f"{n}-", "-0", f"{n + 5}-{n + 9}"):
        a = server.get(path, headers={"Range": f"bytes={text}"})
        assert a.status == 416 and a.headers["Content-Range"] == f"bytes */{n}", text
    for text in ("bytes=5-2", "bytes=a-b", "chars=0-5", "bytes=0-1,3-4", "bytes=-", "bytes=9223372036854775808-"):
        a = server.get(path, headers={"Range": text})
        assert a.status == 200 and len(a.body) == n, text
    tag = whole.headers["ETag"]
    assert server.get(path, headers={"If-None-Match": tag}).status == 304
    assert server.get(path, headers={"If-Range": tag, "Range": "bytes=0-1"}).status == 206
    assert server.get(path, headers={"If-Range": '"x"', "Range": "bytes=0-1"}).status == 200
    head = server.request("HEAD", path)
    assert head.status == 200 and head.body == b"" and int(head.headers["Content-Length"]) == n
    assert server.get(path + "?variant=0").body == whole.body


def test_same_seed_same_video(server):
    a, b = (server.wait(server.create(seed=11))["latents"] for _ in range(2))
    c = server.wait(server.create(seed=12))["latents"]
    assert a == b != c


def test_idempotency_key(server):
    body = {"prompt": "once", **TINY}
    h = {"Idempotency-Key": f"key-{time.time()}"}
    a = server.post("/v1/videos", body, h)
    assert a.status == 200
    b = server.post("/v1/videos", body, h)  # the seed is drawn anew, yet it is the same request
    assert b.status == 200 and b.json["id"] == a.json["id"] and b.json["seed"] == a.json["seed"]
    bad(server.post("/v1/videos", {**body, "prompt": "twice"}, h), 422, "idempotency_key_reused")
    f1 = server.form([("prompt", "p"), *TINY.items()], [("input_reference", "a.png", "image/png", png())], headers={"Idempotency-Key": h["Idempotency-Key"] + "f"})
    f2 = server.form([("prompt", "p"), *TINY.items()], [("input_reference", "a.png", "image/png", png())], boundary="other",
                     headers={"Idempotency-Key": h["Idempotency-Key"] + "f"})
    assert f1.status == f2.status == 200 and f1.json["id"] == f2.json["id"]
    bad(server.form([("prompt", "p"), *TINY.items()], [("input_reference", "a.png", "image/png", png(seed=2))],
                    headers={"Idempotency-Key": h["Idempotency-Key"] + "f"}), 422, "idempotency_key_reused")
    bad(server.post("/v1/videos", body, {"Idempotency-Key": "x" * 300}), 400, "invalid_headers")
    server.wait(a.json["id"])
    server.delete(f"/v1/videos/{a.json['id']}")
    assert server.post("/v1/videos", body, h).json["id"] != a.json["id"]  # deleted: the key is free


def test_idempotency_key_many_at_once(server):
    ids = []

    def go():
        ids.append(server.post("/v1/videos", {"prompt": "race", **TINY}, {"Idempotency-Key": "race"}).json["id"])

    threads = [threading.Thread(target=go) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert len(set(ids)) == 1 and len(ids) == 8


def test_cancel(server):
    running = server.create(**LASTING)
    queued = server.create()
    server.until(running)
    a = server.post(f"/v1/videos/{queued}/cancel")
    assert a.status == 200 and a.json["status"] == "cancelled"
    server.until(running, lambda v: v.get("phase") == "sample")
    b = server.post(f"/v1/videos/{running}/cancel")
    assert b.status == 200 and (b.json["status"] == "cancelled" or b.json["cancel_requested"])
    assert server.wait(running)["status"] == "cancelled"
    assert server.post(f"/v1/videos/{running}/cancel").status == 200  # again: nothing to do
    bad(server.get(f"/v1/videos/{running}/content"), 404, "video_cancelled")
    done = server.create()
    assert server.wait(done)["status"] == "completed"  # the device is free
    a = server.post(f"/v1/videos/{done}/cancel")
    bad(a, 409, "video_finished")
    assert a.headers["x-should-retry"] == "false"


def test_progress_is_true_and_rises(server):
    id = server.create(**STEPPING)
    seen = []

    def look(v):
        if v["status"] == "in_progress":
            seen.append((v["progress"], v["phase"]))
        return len({progress for progress, _ in seen}) > 3 and v.get("phase") == "sample"

    server.until(id, look)
    progress = [p for p, _ in seen]
    assert progress == sorted(progress) and max(progress) < 100
    server.drop(id)
    v = server.wait(server.create())
    assert v["status"] == "completed" and v["progress"] == 100
    assert v["inference_time_s"] > 0 and set(v["stage_durations"]) >= {"text", "sample", "decode", "mux"}


def events(server, id, on_event=lambda name, data: None):
    """[(name, data)] of a whole stream. `on_event` also sees comments, named ":"."""
    out, name = [], None
    with urllib.request.urlopen(f"{server.url}/v1/videos/{id}/events", timeout=300) as r:
        assert r.headers["Content-Type"] == "text/event-stream"
        for line in r:
            line = line.decode().rstrip("\n")
            if line.startswith(":"):
                on_event(":", None)
            if line.startswith("event: "):
                name = line[7:]
            if line.startswith("data: "):
                out.append((name, json.loads(line[6:])))
                on_event(*out[-1])
    return out


def test_events(server):
    """Changes that come in a burst are told once: only a job that lasts shows a step for certain."""
    id = server.create(**STEPPING)
    asked = []

    def stop_when_seen(name, data):
        if name == "progress" and data.get("phase") == "sample" and data["step"] > 1 and not asked:
            asked.append(server.post(f"/v1/videos/{id}/cancel").status)

    out = events(server, id, stop_when_seen)
    names = [n for n, _ in out]
    assert asked == [200] and names[0] == "status" and names[-1] == "done" and names.count("done") == 1
    assert out[-1][1]["status"] == "cancelled"
    progress = [d["progress"] for n, d in out if n == "progress"]
    assert progress == sorted(progress)
    assert any(d.get("phase") == "sample" and d["steps_in_phase"] == 199 for n, d in out if n == "progress")
    assert [n for n, _ in events(server, id)] == ["done"]
    out = events(server, server.create())  # and one that goes to its end
    assert out[0][0] in ("status", "done") and [n for n, _ in out].count("done") == 1
    assert out[-1][0] == "done" and out[-1][1]["status"] == "completed" and out[-1][1]["progress"] == 100


def test_previews(server):
    """A picture of the clean latents as they are foreseen: one pixel for each cell of 16 x 16."""
    id = server.create(**{**STEPPING, "size": "256x128"})
    pictures = []

    def take(name, data):
        if name == "preview":
            pictures.append(data)
            if len(pictures) == 2:
                server.post(f"/v1/videos/{id}/cancel")

    events(server, id, take)
    assert pictures and [d["number"] for d in pictures] == sorted({d["number"] for d in pictures})
    data = base64.b64decode(pictures[0]["png"])
    assert data[:8] == b"\x89PNG\r\n\x1a\n" and data[16:24] == (16).to_bytes(4, "big") + (8).to_bytes(4, "big")
    import struct
    import zlib
    at, pixels = 8, b""
    while at < len(data):
        n, = struct.unpack(">I", data[at:at + 4])
        assert zlib.crc32(data[at + 4:at + 8 + n]) == struct.unpack(">I", data[at + 8 + n:at + 12 + n])[0]
        if data[at + 4:at + 8] == b"IDAT":
            pixels += data[at + 8:at + 8 + n]
        at += 12 + n
    rows = zlib.decompress(pixels)
    assert len(rows) == 8 * 49 and len(set(rows)) > 10  # a picture, not one colour


def test_events_keep_alive_and_deletion(server):
    running = server.create(**LASTING)
    waits = server.create()
    comments = []

    def delete_after_a_comment(name, data):
        if name == ":" and not comments:
            comments.append(server.delete(f"/v1/videos/{waits}").status)

    out = events(server, waits, delete_after_a_comment)
    server.drop(running)
    last = out[-1][1]
    assert comments == [200] and out[-1][0] == "done" and (last.get("status") == "cancelled" or last.get("deleted"))


def test_sync(server):
    a = server.post("/v1/videos/sync", {"prompt": "now", **TINY})
    assert a.status == 200 and a.headers["Content-Type"] == "video/mp4" and a.body[4:8] == b"ftyp"
    id = a.headers["X-Request-Id"]
    assert id.startswith("video_") and a.headers["X-Model"] == "h3-nano"
    assert float(a.headers["X-Inference-Time-S"]) > 0 and "sample" in json.loads(a.headers["X-Stage-Durations"])
    assert server.get(f"/v1/videos/{id}").json["status"] == "completed"
    bad(server.post("/v1/videos/sync", {"prompt": "x", "foo": 1}), 400, "unknown_field")


def test_sync_client_that_leaves_takes_its_job_along(server):
    body = json.dumps({"prompt": "gone", **LASTING}).encode()
    s = server.socket()
    s.sendall(b"POST /v1/videos/sync HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
              b"Content-Length: %d\r\n\r\n" % len(body) + body)
    jobs = eventually(lambda: [v for v in server.get("/v1/videos").json["data"] if v["prompt"] == "gone"])
    server.until(jobs[0]["id"])
    s.close()
    assert server.wait(jobs[0]["id"])["status"] == "cancelled"


def test_sync_that_takes_too_long_goes_on_as_a_job(start):
    s = start("--sync-seconds", "1")
    a = s.post("/v1/videos/sync", {"prompt": "x", **LASTING})
    assert a.status == 202 and a.json["status"] in ("queued", "in_progress")
    s.until(a.json["id"])
    assert s.drop(a.json["id"]).status == 200


def test_queue_is_bounded(start):
    s = start("--queue", "2")
    first = s.create(**LASTING)
    s.until(first)
    ids = [s.create() for _ in range(2)]
    assert [s.get(f"/v1/videos/{i}").json["queue_position"] for i in ids] == [1, 2]
    a = s.post("/v1/videos", {"prompt": "x", **TINY})
    bad(a, 429, "queue_full")
    assert int(a.headers["Retry-After"]) >= 1
    s.delete(f"/v1/videos/{ids[0]}")
    assert s.post("/v1/videos", {"prompt": "x", **TINY}).status == 200
    s.drop(first)


def test_retention(start):
    s = start("--keep-jobs", "2")
    ids = [s.create() for _ in range(4)]
    for i in ids[2:]:
        s.wait(i)
    s.wait(ids[-1])
    # old ones go after the end of a new one is told, their folders after that
    eventually(lambda: sorted(v["id"] for v in s.get("/v1/videos").json["data"]) == sorted(ids[2:]))
    eventually(lambda: sorted(os.listdir(os.path.join(s.data, "jobs"))) == sorted(ids[2:]))


def test_remix_keeps_inputs(server):
    a = server.form([("prompt", "one"), *TINY.items(), ("seed", 4)], [("first_frame", "a.png", "image/png", png())])
    assert server.wait(a.json["id"])["status"] == "completed"
    r = server.post(f"/v1/videos/{a.json['id']}/remix", {"prompt": "two", "steps": 3})
    assert r.status == 200 and r.json["inputs"] == 1 and r.json["seed"] == 4 and r.json["steps"] == 3, r.body
    server.delete(f"/v1/videos/{a.json['id']}")  # the source goes, its inputs stay with the remix
    assert server.wait(r.json["id"])["status"] == "completed"
    bad(server.post(f"/v1/videos/{r.json['id']}/remix", {}), 400, "missing_field", "prompt")
    bad(server.post(f"/v1/videos/{r.json['id']}/remix", {"prompt": "x", "foo": 1}), 400, "unknown_field", "foo")


def test_create_then_poll_never_404(server):
    for i in range(1000 if LONG else 60):
        a = server.post("/v1/videos", {"prompt": str(i), **TINY})
        assert a.status == 200
        id = a.json["id"]
        assert server.get(f"/v1/videos/{id}").status == 200
        assert server.get("/v1/videos?limit=1").json["data"][0]["created_at"] >= a.json["created_at"]
        assert server.drop(id).status == 200
        assert server.get(f"/v1/videos/{id}").status == 404


def test_health_ready_metrics(server):
    assert server.get("/health").json["status"] == "ok"
    assert server.get("/ready").json == {"status": "ready"}
    text = server.get("/metrics").body.decode()
    names = {l.split("{")[0].split(" ")[0] for l in text.splitlines() if l and l[0] != "#"}
    assert {"h3av_jobs", "h3av_workers_ready", "h3av_http_requests_total", "h3av_phase_seconds_total",
            "process_resident_memory_bytes"} <= names
    for line in text.splitlines():
        if line[0] != "#":
            float(line.rsplit(" ", 1)[1])


def test_seed_of_the_answer_makes_the_same_video_again(server):
    a = server.wait(server.create())
    assert server.wait(server.create(seed=a["seed"]))["latents"] == a["latents"]
