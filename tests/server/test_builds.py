"""The routes of builds, as the published clients call them (contract e2b §1.3)."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.server.apis import Api, error_of

CONTENT = b"archive"
HASH = hashlib.sha256(CONTENT).hexdigest()


async def ask(api: Api, name: str = "app", **body: Any) -> dict[str, Any]:
    reply = await api.client.post("/v3/templates", json={"name": name, **body})
    assert reply.status_code == 202, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def tell(api: Api, asked: dict[str, Any], **body: Any) -> httpx.Response:
    path = f"/v2/templates/{asked['templateID']}/builds/{asked['buildID']}"
    body = {"fromTemplate": "base", "force": False, "steps": [], **body}
    return await api.client.post(path, json=body)


async def status(api: Api, asked: dict[str, Any], **query: Any) -> dict[str, Any]:
    path = f"/templates/{asked['templateID']}/builds/{asked['buildID']}/status"
    reply = await api.client.get(path, params=query)
    assert reply.status_code == 200, reply.text
    found: dict[str, Any] = reply.json()
    return found


async def over(api: Api, asked: dict[str, Any]) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while (found := await status(api, asked))["status"] in ("waiting", "building"):  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        return found


async def build(api: Api, name: str = "app", **body: Any) -> dict[str, Any]:
    asked = await ask(api, name)
    assert (await tell(api, asked, **body)).status_code == 202
    await over(api, asked)
    return asked


async def test_a_build_from_its_request_to_a_sandbox(api: Api) -> None:
    asked = await ask(api, "app:v1", tags=["stable"], cpuCount=1, memoryMB=512)
    assert asked["names"] == asked["aliases"] == ["app"]
    assert (asked["tags"], asked["public"]) == (["v1", "stable"], False)
    link = await api.client.get(f"/templates/{asked['templateID']}/files/{HASH}")
    assert link.status_code == 201
    assert link.json()["present"] is False
    url = urlsplit(link.json()["url"])
    assert url.netloc == "api"
    bare = api.client_from("127.0.0.1", {})
    sent = await bare.put(f"{url.path}?{url.query}", content=CONTENT)
    assert sent.status_code == 200, sent.text
    again = await api.client.get(f"/templates/{asked['templateID']}/files/{HASH}")
    assert again.json()["present"] is True

    steps = [
        {"type": "ENV", "args": ["A", "1"], "force": False},
        {"type": "COPY", "args": ["a", "/b", "", ""], "filesHash": HASH, "force": False},
        {"type": "RUN", "args": ["make"], "force": False},
    ]
    started = await tell(api, asked, steps=steps, startCmd="serve", readyCmd="up")
    assert started.status_code == 202
    found = await over(api, asked)
    assert found["status"] == "ready"
    assert "reason" not in found
    assert found["logs"] == []
    entry = next(e for e in found["logEntries"] if e["message"] == "[builder 3/3] RUN make")
    assert (entry["level"], entry["step"]) == ("info", "3")
    assert [content for _, content in api.node.script.copied] == [CONTENT]

    sandbox = await api.client.post("/v2/sandboxes", json={"templateID": "app:stable"})
    assert sandbox.status_code == 201
    assert sandbox.json()["templateID"] == asked["templateID"]
    assert sandbox.json()["alias"] == "app"
    other = await api.new()
    for reference in ("app", asked["templateID"]):
        assert await api.ids(template=reference) == [sandbox.json()["sandboxID"]]
    assert other in await api.ids(template="base")
    missing = await api.client.post("/v2/sandboxes", json={"templateID": "app"})
    assert error_of(missing) == (404, "not_found")


async def test_the_log_is_read_from_an_offset_and_by_level(api: Api) -> None:
    asked = await build(api, steps=[{"type": "RUN", "args": ["make"]}])
    whole = (await status(api, asked))["logEntries"]
    assert (await status(api, asked, logsOffset=2, limit=1))["logEntries"] == whole[2:3]
    assert (await status(api, asked, logsOffset=1000))["logEntries"] == []
    warned = (await status(api, asked, level="warn"))["logEntries"]
    assert {one["level"] for one in warned} == {"warn"}
    path = f"/templates/{asked['templateID']}/builds/{asked['buildID']}/logs"
    backward = await api.client.get(path, params={"direction": "backward", "limit": 2})
    assert backward.json()["logs"] == whole[:-3:-1]


async def test_a_failed_build_gives_its_reason(api: Api) -> None:
    api.node.script.failing["make"] = 2
    asked = await build(api, steps=[{"type": "RUN", "args": ["make"]}])
    found = await status(api, asked)
    assert found["status"] == "error"
    assert found["reason"]["step"] == "1"
    assert found["reason"]["message"] == "failed to run command 'make': exit status 2"
    assert found["reason"]["logEntries"]
    template = (await api.client.get(f"/templates/{asked['templateID']}")).json()
    [failed] = template["builds"]
    said = "step 1: failed to run command 'make': exit status 2"
    assert (failed["status"], failed["error"]) == ("error", said)
    refused = await api.client.post("/v2/sandboxes", json={"templateID": asked["templateID"]})
    assert said in refused.json()["message"]


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        ({"signature": "x"}, (403, "forbidden")),
        ({"team": "others"}, (403, "forbidden")),
        ({"expires": "1"}, (403, "forbidden")),
        ({"expires": "soon"}, (400, "invalid_request")),
    ],
)
async def test_an_upload_needs_its_link(
    api: Api, change: dict[str, str], wanted: tuple[int, str]
) -> None:
    link = (await api.client.get(f"/templates/t/files/{HASH}")).json()["url"]
    bare = api.client_from("127.0.0.1", {})
    url = httpx.URL(link).copy_merge_params(change)
    assert error_of(await bare.put(url, content=CONTENT)) == wanted
    assert (await api.client.get(f"/templates/t/files/{HASH}")).json()["present"] is False


async def test_other_requests_there_need_a_key(api: Api) -> None:
    bare = api.client_from("127.0.0.1", {})
    for method in ("GET", "POST", "DELETE"):
        reply = await bare.request(method, f"/templates/t/files/{HASH}")
        assert reply.status_code == 401, method


@pytest.mark.parametrize(
    "body",
    [
        {"fromTemplate": None},
        {"fromImage": "python"},
        {"steps": [{"type": "NOPE", "args": []}]},
        {"steps": [{"type": "RUN", "args": []}]},
        {"steps": [{"type": "COPY", "args": ["a", "b"]}]},
        {"steps": [{"type": "COPY", "args": ["a", "b"], "filesHash": "../../x"}]},
        {"steps": "all"},
    ],
)
async def test_bad_plans(api: Api, body: dict[str, Any]) -> None:
    reply = await tell(api, await ask(api), **body)
    assert error_of(reply) == (400, "invalid_request")


async def test_builds_that_are_not_there(api: Api) -> None:
    asked = await ask(api)
    for path in (f"/templates/{asked['templateID']}/builds/x/status", "/templates/x/builds/y/logs"):
        assert error_of(await api.client.get(path)) == (404, "not_found")
    assert error_of(await tell(api, {**asked, "templateID": "other"})) == (404, "not_found")
    await tell(api, asked)
    assert error_of(await tell(api, asked)) == (409, "conflict")


async def test_a_build_is_cancelled(api: Api) -> None:
    api.node.script.gates["make"] = asyncio.Event()
    asked = await ask(api)
    await tell(api, asked, steps=[{"type": "RUN", "args": ["make"]}])
    path = f"/aenv/templates/{asked['templateID']}/builds/{asked['buildID']}/cancel"
    assert (await api.client.post(path)).status_code == 204
    assert (await over(api, asked))["reason"]["message"] == "the build was cancelled"
    assert (await api.client.post(path)).status_code == 204


async def test_tags(api: Api) -> None:
    asked = await build(api)
    target = {"target": "app:default", "tags": ["v1", "best"]}
    tagged = await api.client.post("/templates/tags", json=target)
    assert (tagged.status_code, tagged.json()["buildID"]) == (201, asked["buildID"])
    listed = (await api.client.get("/templates/app/tags")).json()
    assert {one["tag"] for one in listed} == {"default", "v1", "best"}
    assert (await api.client.get("/templates/app/tags/count")).json() == {"total": 3}
    exists = await api.client.get("/templates/app/tags/exists", params={"tag": "V1"})
    assert exists.json() == {"exists": True, "normalizedTag": "v1"}
    groups = (await api.client.get("/templates/app/tags/groups")).json()
    assert [one["tag"] for one in groups["tags"]] == ["best", "default", "v1"]
    made = (await api.client.get("/templates/app/tags/v1/assignments")).json()["data"]
    assert [one["buildID"] for one in made] == [asked["buildID"]]
    gone = {"name": "app", "tags": ["best"]}
    assert (await api.client.request("DELETE", "/templates/tags", json=gone)).status_code == 204
    again = await api.client.request("DELETE", "/templates/tags", json=gone)
    assert error_of(again) == (404, "not_found")
    bad = await api.client.post("/templates/tags", json={"target": "app", "tags": ["NO!"]})
    assert error_of(bad) == (400, "invalid_request")
    unknown = await api.client.post("/templates/tags", json={"target": "nope", "tags": ["a"]})
    assert error_of(unknown) == (404, "not_found")


async def test_a_template_is_listed_shared_and_deleted(api: Api) -> None:
    asked = await build(api)
    path = f"/templates/{asked['templateID']}"
    listed = {one["names"][0]: one for one in (await api.client.get("/v2/templates")).json()}
    assert set(listed) == {"base", "app"}
    assert listed["app"]["buildStatus"] == "ready"
    assert listed["app"]["sizeBytes"] > 0
    alias = await api.client.get("/templates/aliases/app")
    assert alias.json() == {"templateID": asked["templateID"], "public": False}
    shared = await api.client.patch(f"/v2{path}", json={"public": True})
    assert shared.json() == {"names": ["app"]}
    assert (await api.client.get(path)).json()["public"] is True
    assert (await api.client.delete(path)).status_code == 204
    assert error_of(await api.client.get(path)) == (404, "not_found")
    assert error_of(await api.client.delete(path)) == (404, "not_found")
    assert error_of(await api.client.get("/templates/aliases/app")) == (404, "not_found")


async def test_cached_steps_do_not_keep_a_template_from_being_deleted(api: Api) -> None:
    await build(api, steps=[{"type": "RUN", "args": ["make"]}])
    assert (await api.client.delete("/templates/app")).status_code == 204
    assert (await api.client.delete("/templates/base")).status_code == 204
    await api.system._background.close(5)
    assert api.node.images == {}


async def test_the_list_is_paged(api: Api) -> None:
    for name in ("b1", "b2", "b3"):
        await build(api, name)
    names: list[str] = []
    token = ""
    while True:
        page = await api.client.get("/v2/templates", params={"limit": 2, "nextToken": token})
        names += [one["names"][0] for one in page.json()]
        token = page.headers.get("x-next-token", "")
        if not token:
            break
    assert names == ["b1", "b2", "b3", "base"]
