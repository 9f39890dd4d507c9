"""``/volumes`` and ``/volumecontent`` as clients see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from tests.server.apis import Api, error_of

from aenv.server.middleware import MAX_BODY


async def make(api: Api, name: str = "data", **body: Any) -> dict[str, Any]:
    reply = await api.client.post("/volumes", json={"name": name, **body})
    assert reply.status_code == 201, reply.text
    made: dict[str, Any] = reply.json()
    return made


def bearer(api: Api, volume: dict[str, Any]) -> httpx.AsyncClient:
    """A client that has the volume's token and no API key."""
    client = api.client_from("127.0.0.1", {"Authorization": f"Bearer {volume['token']}"})
    client.base_url = httpx.URL(f"http://api/volumecontent/{volume['volumeID']}/")
    return client


async def test_volumes_are_made_listed_shown_and_deleted(api: Api) -> None:
    volume = await make(api, sizeMB=5)
    assert (volume["name"], volume["sizeMB"], volume["mode"]) == ("data", 5, "exclusive")
    (listed,) = (await api.client.get("/volumes")).json()
    assert listed == {name: value for name, value in volume.items() if name != "token"}
    shown = await api.client.get(f"/volumes/{volume['volumeID']}")
    assert shown.json() == volume

    sandbox = await api.new(volumeMounts=[{"name": "data", "path": "/data"}])
    shown = await api.client.get(f"/volumes/{volume['volumeID']}")
    assert shown.json()["sandboxIDs"] == [sandbox]
    detail = (await api.client.get(f"/sandboxes/{sandbox}")).json()
    assert detail["volumeMounts"] == [
        {"name": "data", "path": "/data", "readOnly": False, "ownCopy": False}
    ]
    refused = await api.client.delete(f"/volumes/{volume['volumeID']}")
    assert error_of(refused) == (409, "conflict")
    await api.client.delete(f"/sandboxes/{sandbox}")
    assert (await api.client.delete(f"/volumes/{volume['volumeID']}")).status_code == 204
    gone = await api.client.get(f"/volumes/{volume['volumeID']}")
    assert error_of(gone) == (404, "not_found")


@pytest.mark.parametrize("name", ["", "a/b", "../x", ".hidden", "é", "a" * 129, "a@b"])
async def test_names_that_are_refused(api: Api, name: str) -> None:
    assert (await api.client.post("/volumes", json={"name": name})).status_code == 400


async def test_content_needs_the_volumes_own_token_and_nothing_else(api: Api) -> None:
    volume, other = await make(api), await make(api, "other")
    async with bearer(api, volume) as client:
        assert (await client.get("dir", params={"path": "/"})).json() == []
    for headers in (
        {},
        {"X-API-Key": api.system.keys.local},
        {"Authorization": f"Bearer {other['token']}"},
        {"Authorization": f"Basic {volume['token']}"},
        {"Authorization": "Bearer"},
    ):
        async with api.client_from("127.0.0.1", headers) as stranger:
            for method, kind in (("GET", "dir"), ("PUT", "file"), ("DELETE", "path")):
                url = f"/volumecontent/{volume['volumeID']}/{kind}"
                reply = await stranger.request(method, url, params={"path": "/x"})
                assert error_of(reply) == (401, "unauthorized")


async def test_files_pass_through(api: Api) -> None:
    volume = await make(api)
    big = bytes(range(256)) * (MAX_BODY // 256 + 1000)

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(big), 100_000):
            yield big[start : start + 100_000]

    async with bearer(api, volume) as client:
        put = await client.put("file", params={"path": "/a/b", "mode": 0o640}, content=pieces())
        assert (put.status_code, put.json()["size"], put.json()["mode"]) == (201, len(big), 0o640)
        assert (await client.get("file", params={"path": "/a/b"})).content == big
        found = await client.get("dir", params={"path": "/", "depth": 2})
        assert [(one["path"], one["type"]) for one in found.json()] == [
            ("/a", "directory"),
            ("/a/b", "file"),
        ]
        changed = await client.patch("path", params={"path": "/a/b"}, json={"mode": 0o600})
        assert changed.json()["mode"] == 0o600
        shown = (await client.get("path", params={"path": "/a/b"})).json()
        assert shown == changed.json()
        made = await client.post("dir", params={"path": "/x/y", "force": "true"})
        assert (made.status_code, made.json()["type"]) == (201, "directory")
        assert (await client.delete("path", params={"path": "/a"})).status_code == 204
        gone = await client.get("path", params={"path": "/a/b"})
        assert error_of(gone) == (404, "not_found")


@pytest.mark.parametrize(
    ("wanted", "status", "content", "said"),
    [
        ("bytes=2-4", 206, b"234", "bytes 2-4/10"),
        ("bytes=7-", 206, b"789", "bytes 7-9/10"),
        ("bytes=-3", 206, b"789", "bytes 7-9/10"),
        ("bytes=0-99", 206, b"0123456789", "bytes 0-9/10"),
        ("bytes=10-", 416, b"", "bytes */10"),
        ("lines=1-2", 200, b"0123456789", None),
        ("bytes=-", 200, b"0123456789", None),
    ],
)
async def test_a_range_of_a_file(
    api: Api, wanted: str, status: int, content: bytes, said: str | None
) -> None:
    async with bearer(api, await make(api)) as client:
        await client.put("file", params={"path": "/f"}, content=b"0123456789")
        reply = await client.get("file", params={"path": "/f"}, headers={"Range": wanted})
    assert (reply.status_code, reply.content) == (status, content)
    assert reply.headers.get("content-range") == said


@pytest.mark.parametrize(
    ("method", "kind", "query", "status"),
    [
        ("GET", "file", {}, 400),
        ("GET", "file", {"path": "/missing"}, 404),
        ("GET", "file", {"path": "/folder"}, 409),
        ("GET", "dir", {"path": "/folder", "depth": 0}, 400),
        ("GET", "dir", {"path": "/missing"}, 404),
        ("POST", "dir", {"path": "/folder"}, 409),
        ("POST", "dir", {"path": "/a/b/c"}, 404),
        ("POST", "dir", {"path": "/m", "mode": 0o10000}, 400),
        ("POST", "dir", {"path": "/u", "uid": -1}, 400),
        ("DELETE", "path", {"path": "/"}, 400),
        ("PUT", "file", {"path": "/folder"}, 409),
        ("PUT", "path", {"path": "/folder"}, 405),
    ],
)
async def test_what_cannot_be_is_told(
    api: Api, method: str, kind: str, query: dict[str, Any], status: int
) -> None:
    async with bearer(api, await make(api)) as client:
        await client.post("dir", params={"path": "/folder"})
        assert (await client.request(method, kind, params=query)).status_code == status


async def test_an_upload_that_is_under_way_when_its_volume_is_sealed_is_refused(api: Api) -> None:
    volume = await make(api)

    async def slow() -> AsyncIterator[bytes]:
        yield b"1"
        sealed = await api.client.post(f"/aenv/volumes/{volume['volumeID']}/seal")
        assert (sealed.status_code, sealed.json()["mode"]) == (200, "read-only")
        yield b"2"

    async with bearer(api, volume) as client:
        late = await client.put("file", params={"path": "/f"}, content=slow())
        assert error_of(late) == (409, "conflict")
        assert (await client.get("dir", params={"path": "/"})).json() == []


async def cold(api: Api, *drives: dict[str, Any], **body: Any) -> httpx.Response:
    wanted = {"image": "base", "attachedDrives": list(drives), **body}
    return await api.client.post("/sandboxes-cold", json=wanted)


async def test_drives_are_volumes_that_many_read_or_one_writes(api: Api) -> None:
    volume = await make(api)
    readers = [await cold(api, {"driveID": "data"}, memoryMB=128) for _ in range(2)]
    ids = [one.json()["sandboxID"] for one in readers]
    (mount,) = api.node.running[ids[0]].volumes
    assert (mount.path, mount.read_only) == ("/mnt/data", True)
    writer = {"driveID": "data", "readOnly": False, "mountPath": "/rw"}
    refused = await cold(api, writer)
    assert error_of(refused) == (409, "conflict")
    for one in ids:
        await api.client.delete(f"/sandboxes/{one}")
    made = await cold(api, writer)
    assert made.status_code == 201
    assert made.headers["x-agentenv-sandbox-id"] == made.json()["sandboxID"]
    assert error_of(await cold(api, {"driveID": "data"})) == (409, "conflict")
    shown = (await api.client.get(f"/volumes/{volume['volumeID']}")).json()
    assert shown["sandboxIDs"] == [made.json()["sandboxID"]]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"attachedDrives": [{"driveID": "d", "source": {"image": "x:1"}}]}, 501, "source"),
        ({"attachedDrives": [{"driveID": "d", "subPath": "x"}]}, 501, "subPath"),
        ({"attachedDrives": [{"driveID": "none"}]}, 404, "none"),
        ({"attachedDrives": [{"mountPath": "/x"}]}, 400, "driveID"),
        ({"memoryMB": 127}, 400, "memoryMB"),
        ({"diskSizeMB": 1500}, 400, "diskSizeMB"),
        ({"image": ""}, 400, "image"),
        ({"image": "no-such-thing"}, 404, "no-such-thing"),
    ],
)
async def test_what_a_cold_start_refuses(
    api: Api, body: dict[str, Any], status: int, said: str
) -> None:
    reply = await api.client.post("/sandboxes-cold", json={"image": "base", **body})
    assert reply.status_code == status
    assert said in reply.json()["message"]


async def test_a_cold_start_is_a_create_under_other_names(api: Api) -> None:
    reply = await cold(
        api,
        autoPause=True,
        autoResume=True,
        allowInternetAccess=False,
        metadata={"a": "b"},
        envVars={"A": "b"},
        cpuCount=1,
        memoryMB=256,
        diskSizeMB=2048,
    )
    assert reply.status_code == 201, reply.text
    record = await api.row(reply.json()["sandboxID"])
    assert (record.auto_pause, record.auto_resume, record.labels) == (True, True, {"a": "b"})
    assert (record.timeout, record.env_vars) == (15, {"A": "b"})
    assert (record.resources.cpu, record.resources.memory_mb) == (1, 256)
    assert api.node.running[record.id].network.allow_internet is False
