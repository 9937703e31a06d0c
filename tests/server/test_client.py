"""The openai client as people have it."""
import io

import openai
import pytest

from conftest import LASTING, png


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=2)


TINY = {"num_frames": 22, "num_inference_steps": 2}


def tiny(client, prompt="a fox", **kw):
    kw.setdefault("size", "32x32")
    extra = {**TINY, **kw.pop("extra_body", {})}
    return client.videos.create(prompt=prompt, extra_body=extra, **kw)


def lasting(client):
    """One that is still at work when something is done to it."""
    return client.videos.create(prompt="a fox", size=LASTING["size"], extra_body={
        "num_inference_steps": LASTING["steps"], "num_frames": LASTING["num_frames"]})


def end(client, id):
    return client.videos.poll(id)


def test_create_and_poll(client):
    v = client.videos.create_and_poll(prompt="a fox in snow", size="32x32", extra_body=TINY, poll_interval_ms=100)
    assert v.status == "completed" and v.progress == 100 and v.object == "video"
    assert v.prompt == "a fox in snow" and v.size == "32x32" and v.seconds == "0.917"
    assert v.completed_at >= v.created_at and v.expires_at > v.completed_at
    assert v.error is None


def test_poll_without_interval_uses_our_header(client):
    v = tiny(client)
    assert end(client, v.id).status == "completed"


def test_retrieve_content_variants(client):
    v = tiny(client)
    end(client, v.id)
    assert client.videos.retrieve(v.id).status == "completed"
    video = client.videos.download_content(v.id).read()
    assert video[4:8] == b"ftyp"
    thumbnail = client.videos.download_content(v.id, variant="thumbnail").read()
    assert thumbnail[:8] == b"\x89PNG\r\n\x1a\n"
    sound = client.videos.download_content(v.id, extra_query={"variant": "audio"}).read()
    assert sound[:4] == b"RIFF"
    with pytest.raises(openai.BadRequestError) as e:
        client.videos.download_content(v.id, variant="spritesheet")
    assert e.value.param == "variant"


def test_nested_extra_params_as_brackets(client):
    v = client.videos.create(prompt="x", size="32x32",
                             extra_body={"extra_params": {"task": "t2va", "duration": 0.9}, "num_inference_steps": 2})
    assert client.videos.retrieve(v.id).task == "t2va"
    assert client.videos.retrieve(v.id).frames == 22
    assert end(client, v.id).status == "completed"


def test_input_reference_becomes_first_frame(client):
    v = tiny(client, input_reference=("cat.png", io.BytesIO(png()), "image/png"))
    assert v.task == "fl2va" and v.inputs == 1
    assert end(client, v.id).status == "completed"


def test_remix(client):
    v = tiny(client, prompt="one", extra_body={"seed": 5})
    end(client, v.id)
    r = client.videos.remix(v.id, prompt="two")
    assert r.remixed_from_video_id == v.id and r.prompt == "two" and r.size == "32x32" and r.seed == 5
    assert end(client, r.id).status == "completed"


def test_delete(client):
    v = tiny(client)
    end(client, v.id)
    d = client.videos.delete(v.id)
    assert d.deleted and d.id == v.id and d.object == "video.deleted"
    for call in (client.videos.retrieve, client.videos.delete, client.videos.download_content):
        with pytest.raises(openai.NotFoundError):
            call(v.id)


def test_delete_of_a_running_one(client):
    v = lasting(client)
    assert client.videos.delete(v.id).deleted
    with pytest.raises(openai.NotFoundError):
        client.videos.retrieve(v.id)


def test_errors_are_readable(client):
    with pytest.raises(openai.BadRequestError) as e:
        client.videos.create(prompt="x", extra_body={"refrences": "cat.png"})
    assert "refrences" in str(e.value) and e.value.param == "refrences" and e.value.code == "unknown_field"
    with pytest.raises(openai.BadRequestError) as e:
        client.videos.create(prompt="x", model="sora-2")
    assert e.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError) as e:
        client.videos.retrieve("video_nope")
    assert e.value.code == "video_not_found"


def test_failing_job_is_seen_as_failed(client, server):
    """A run that dies: its process is killed while it works."""
    import os
    import signal
    v = lasting(client)
    server.until(v.id, lambda v: v.get("phase") == "sample")
    for pid in server.worker_pids():
        os.kill(pid, signal.SIGKILL)  # a sanitizer would catch SIGSEGV
    f = client.videos.poll(v.id, poll_interval_ms=100)
    assert f.status == "failed" and f.error.code == "worker_crashed" and "signal 9," in f.error.message
    with pytest.raises(openai.NotFoundError) as e:
        client.videos.download_content(v.id)
    assert e.value.code == "video_failed"
    again = tiny(client)
    assert end(client, again.id).status == "completed"  # only that job was harmed


def test_content_of_an_unfinished_one(client):
    v = lasting(client)
    with pytest.raises(openai.ConflictError) as e:
        client.videos.download_content(v.id)
    assert e.value.code == "video_not_ready"
    client.videos.delete(v.id)


@pytest.mark.parametrize("n", [0, 1, 20, 21, 101])
def test_list_walks_all_pages(start, n):
    s = start("--queue", "200")
    c = openai.OpenAI(base_url=s.url + "/v1", api_key="unused")
    if n:  # keeps the device busy, so that the rest stays queued and costs nothing
        s.create(**LASTING)
    ids = [s.create(prompt=f"number {i}") for i in range(n - 1)]
    seen = [v.id for v in c.videos.list()]
    assert len(seen) == n == len(set(seen))
    assert set(ids) <= set(seen)
    assert [v.id for v in c.videos.list(order="asc")] == seen[::-1]
    if n > 2:
        page = c.videos.list(limit=2, order="desc")
        assert len(page.data) == 2 and page.has_more
        page = c.videos.list(after=seen[-2])
        assert [v.id for v in page.data] == seen[-1:] and not page.has_more


def test_models(client):
    assert [m.id for m in client.models.list()] == ["h3-nano"]
    assert client.models.retrieve("h3-nano").id == "h3-nano"


def test_key(start):
    s = start(env={"H3AV_API_KEY": "secret-of-the-test"})
    good = openai.OpenAI(base_url=s.url + "/v1", api_key="secret-of-the-test")
    assert list(good.videos.list()) == []
    for key in ("wrong", "secret-of-the-tesT", "secret-of-the-test1", "secret"):
        with pytest.raises(openai.AuthenticationError) as e:
            openai.OpenAI(base_url=s.url + "/v1", api_key=key).videos.create(prompt="x")
        assert e.value.code == "invalid_api_key"
    assert s.get("/health").status == 200 and s.get("/").status == 200
    assert s.get("/metrics").status == 401
