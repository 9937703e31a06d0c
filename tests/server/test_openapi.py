"""docs/openapi.json says what the server does: every route, every field, the shape of every answer."""
import json
import re

import jsonschema
import pytest

from conftest import LASTING, STEPPING, TINY, eventually


@pytest.fixture(scope="module")
def api(server):
    return server.get("/openapi.json").json


def resolve(api, schema):
    """Local references as a registry of one document."""
    return {"$ref": "#/components/schemas/" + schema["$ref"].rsplit("/", 1)[1], "components": api["components"]} if "$ref" in schema else schema


def check(api, method, path, answer):
    """The answer is one that the description names, in its type and shape."""
    op = api["paths"][path][method.lower()]
    assert str(answer.status) in op["responses"], (method, path, answer.status, answer.body[:300])
    content = op["responses"][str(answer.status)].get("content")
    if not content:
        return
    kind = (answer.headers["Content-Type"] or "").split(";")[0]
    assert kind in content, (method, path, kind)
    schema = content[kind].get("schema")
    if schema and kind == "application/json":
        jsonschema.Draft202012Validator(resolve(api, schema)).validate(answer.json)


def test_document_is_whole(api):
    assert api["openapi"].startswith("3.1")
    ids = [op["operationId"] for p in api["paths"].values() for m, op in p.items() if m != "parameters"]
    assert len(ids) == len(set(ids))
    text = json.dumps(api)
    for name in set(re.findall(r'"#/components/schemas/(\w+)"', text)):
        assert name in api["components"]["schemas"]
        jsonschema.Draft202012Validator.check_schema(api["components"]["schemas"][name])


def test_routes_are_the_servers(server, api):
    """For each path the methods are those that the server allows, and there are no others."""
    for path, item in api["paths"].items():
        url = path.replace("{id}", "video_" + "0" * 44)
        allowed = {m.strip() for m in server.request("OPTIONS", url).headers["Allow"].split(",")}
        described = {m.upper() for m in item if m != "parameters"}
        if path == "/v1/videos/sync":
            allowed -= {"GET", "DELETE"}  # of /v1/videos/{id}, for which "sync" is no id
        assert allowed == described, path
    source = open(__file__.replace("tests/server/test_openapi.py", "server/routes.c")).read()
    routes = set(re.findall(r'\{"([A-Z]+)", "(/[^"]*)", \w+', source))
    assert routes == {(m.upper(), p) for p, item in api["paths"].items() for m in item if m != "parameters"}


def test_fields_are_the_servers(server, api):
    fields = api["components"]["schemas"]["CreateVideo"]["properties"]
    source = open(__file__.replace("tests/server/test_openapi.py", "server/params.c")).read()
    table = source.split("static const field fields[] = {")[1].split("};")[0]
    assert set(re.findall(r'\{"(\w+)", f_', table)) == set(fields)
    assert re.findall(r'\{"(\w+)", f_', table) == sorted(fields)  # it is searched by bisection
    for name in fields:  # known to the running one too
        a = server.post("/v1/videos", {name: [[[]]]})
        assert a.status == 400 and a.error["code"] != "unknown_field", name


def test_answers_have_the_described_shape(server, api):
    def call(method, path, body=None, url=None, headers=None):
        url = url or path
        if body is not None:
            a = server.request(method, url, json.dumps(body).encode(), {"Content-Type": "application/json"})
        else:
            a = server.request(method, url, headers=headers or {})
        check(api, method, path, a)
        return a

    for path in ("/health", "/ready", "/metrics", "/v1/models", "/openapi.json", "/", "/app.js", "/app.css", "/icon.svg"):
        assert call("GET", path).status == 200
    name = call("GET", "/v1/models").json["data"][0]["id"]
    assert call("GET", "/v1/models/{model}", url=f"/v1/models/{name}").json["id"] == name
    other = call("GET", "/v1/models/{model}", url="/v1/models/sora-2")
    assert other.status == 404 and other.error["code"] == "model_not_found" and "sora-2" in other.error["message"]
    tag = server.get("/").headers["ETag"]
    assert call("GET", "/", headers={"If-None-Match": tag}).status == 304
    long_one = call("POST", "/v1/videos", {"prompt": "x", **STEPPING}).json["id"]
    v = call("POST", "/v1/videos", {"prompt": "x", **TINY}).json
    id = v["id"]
    path = "/v1/videos/{id}"
    assert v["status"] == "queued" and "queue_position" in v
    server.until(long_one, lambda v: v.get("step", 0) >= 1)
    assert call("GET", path, url=f"/v1/videos/{long_one}").status == 200
    assert call("GET", path + "/content", url=f"/v1/videos/{long_one}/content").status == 409
    assert call("POST", path + "/cancel", {}, url=f"/v1/videos/{long_one}/cancel").status == 200
    server.wait(id)
    assert call("GET", path, url=f"/v1/videos/{id}").status == 200
    assert call("GET", "/v1/videos").status == 200
    assert call("GET", "/v1/videos", url="/v1/videos?limit=0").status == 400
    for variant in ("video", "thumbnail", "audio", "0"):
        assert call("GET", path + "/content", url=f"/v1/videos/{id}/content?variant={variant}").status == 200
    assert call("GET", path + "/content", url=f"/v1/videos/{id}/content", headers={"Range": "bytes=0-3"}).status == 206
    assert call("GET", path + "/content", url=f"/v1/videos/{id}/content", headers={"Range": "bytes=99999999-"}).status == 416
    assert call("GET", path + "/content", url=f"/v1/videos/{id}/content?variant=x").status == 400
    assert call("GET", path + "/events", url=f"/v1/videos/{id}/events").status == 200
    assert call("POST", path + "/cancel", {}, url=f"/v1/videos/{id}/cancel").status == 409
    r = call("POST", path + "/remix", {"prompt": "y"}, url=f"/v1/videos/{id}/remix").json["id"]
    assert call("POST", path + "/remix", {}, url=f"/v1/videos/{id}/remix").status == 400
    assert call("POST", "/v1/videos/sync", {"prompt": "x", **TINY}).status == 200
    for one in (id, r, long_one):
        assert call("DELETE", path, url=f"/v1/videos/{one}").status == 200
    for method, p in (("GET", ""), ("DELETE", ""), ("POST", "/cancel"), ("GET", "/content"), ("POST", "/remix"), ("GET", "/events")):
        assert call(method, path + p, {} if method == "POST" else None, url=f"/v1/videos/{id}{p}").status == 404
    assert call("POST", "/v1/videos", {"prompt": 1}).status == 400
    assert call("POST", "/v1/videos/sync", {"prompt": 1}).status == 400


def test_failures_have_the_described_shape(start, api):
    s = start("--queue", "1", "--max-body", "64K", "--api-key", "secret-secret")
    k = {"Authorization": "Bearer secret-secret", "Content-Type": "application/json"}
    js = lambda o: json.dumps(o).encode()
    first = s.request("POST", "/v1/videos", js({"prompt": "x", **LASTING}), k)
    check(api, "POST", "/v1/videos", first)
    eventually(lambda: s.get(f"/v1/videos/{first.json['id']}", headers=k).json["status"] == "in_progress")
    s.request("POST", "/v1/videos", js({"prompt": "x", **TINY}), k)
    for body, headers, status in (
            (js({"prompt": "x", **TINY}), k, 429), (js({"prompt": "x"}), {}, 401), (js({"prompt": "x"}), {**k, "Origin": "http://e.example"}, 403),
            (b"x" * 100000, k, 413), (b"a=b", {**k, "Content-Type": "text/plain"}, 415)):
        a = s.request("POST", "/v1/videos", body, headers)
        assert a.status == status, a.body
        check(api, "POST", "/v1/videos", a)
    s.request("DELETE", f"/v1/videos/{first.json['id']}", headers=k)
