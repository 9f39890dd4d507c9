"""What a server may be told at its start and in a create, and routes no published client calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import datetime

import pytest
from tests.e2e.servers import LiveServer
from tests.e2e.wire import Box, Wire

MakeServer = Callable[..., LiveServer]
UNBUILT = [
    ("GET", "/secrets", None),
    ("GET", "/teams", None),
]


@pytest.fixture
def box(wire: Wire) -> Iterator[Box]:
    box = wire.create()
    yield box
    wire.delete(box)


def test_the_operator_presets_the_key_and_it_may_be_short(make_server: MakeServer):
    server = make_server()
    server.api_key = "k"
    server.start()
    assert Wire(server).ids() == set()
    assert Wire(server, api_key="K").http.get("/v2/sandboxes").status_code == 401
    assert server.aenv("ls", "-q") == ""
    assert "can be guessed" in server.tail()
    assert '"k"' not in server.tail()


def test_a_refresh_only_extends(wire: Wire, box: Box):
    def end() -> datetime:
        return datetime.fromisoformat(wire.detail(box).json()["endAt"])

    before = end()
    path = f"/sandboxes/{box.id}/refreshes"
    assert wire.http.post(path, json={"duration": 1}).status_code == 204
    assert end() == before
    assert wire.http.post(path, json={"duration": 3000}).status_code == 204
    assert (end() - before).total_seconds() > 2000
    assert wire.http.post(path, json={"duration": -1}).status_code == 400
    gone = f"/sandboxes/{'i' + '0' * 19}/refreshes"
    assert wire.http.post(gone, json={"duration": 1}).status_code == 404


def test_uploaded_parts_are_joined(wire: Wire, box: Box):
    for number, text in enumerate(("first ", "second")):
        wire.run(box, f"printf %s '{text}' > part{number}")
    body = {
        "destination": "/home/user/deep/whole",
        "source_paths": ["/home/user/part0", "/home/user/part1"],
        "username": "user",
    }
    reply = wire.rpc(box, "/files/compose", json.dumps(body).encode())
    assert reply.status_code == 200, reply.text
    assert reply.json()["path"] == "/home/user/deep/whole"
    said = wire.run(box, "cat deep/whole; stat -c ' %U' deep/whole; ls")
    assert said.stdout == "first second user\ndeep\n"
    missing = json.dumps(body | {"source_paths": ["/home/user/none"]}).encode()
    assert wire.rpc(box, "/files/compose", missing).status_code == 404
    other = wire.rpc(box, "/files/compose", missing, **{"X-Access-Token": "wrong"})
    assert other.status_code == 401


def test_an_engine_without_isolation_is_used_when_named_and_said_everywhere(
    server: LiveServer, wire: Wire
):
    reply = wire.http.post("/v2/sandboxes", json={"templateID": "base", "engine": "process"})
    assert reply.status_code == 201, reply.text
    found = reply.json()
    box = Box(found["sandboxID"], found["envdAccessToken"])
    assert found["engine"] == wire.detail(box).json()["engine"] == "process"
    assert wire.run(box, "echo $E2B_SANDBOX_ID").stdout.strip() == box.id
    assert "isolates nothing" in server.log.read_text()
    assert "no isolation" in server.aenv("ls")
    assert "no isolation" in server.aenv("inspect", box.id)
    limited = {"templateID": "base", "engine": "process", "allow_internet_access": False}
    refused = wire.http.post("/v2/sandboxes", json=limited)
    assert refused.status_code == 400
    assert "cannot enforce" in refused.json()["message"]
    assert wire.delete(box) == 204


def test_an_engine_that_is_none_is_refused(wire: Wire):
    reply = wire.http.post("/v2/sandboxes", json={"templateID": "base", "engine": "qemu"})
    assert reply.status_code == 400
    assert "gvisor" in reply.json()["message"]


def test_metrics_report_the_memory_that_was_asked_for(wire: Wire):
    box = wire.create(memoryMB=256)
    (sample, *_) = wire.http.get(f"/sandboxes/{box.id}/metrics").json()
    assert sample["memTotal"] == 256 << 20
    assert 0 < sample["memUsed"] < 256 << 20
    wire.delete(box)


@pytest.mark.parametrize(("method", "path", "body"), UNBUILT)
def test_what_is_not_built_yet_says_so(wire: Wire, method: str, path: str, body: object):
    reply = wire.http.request(method, path, json=body)
    assert reply.status_code == 501, reply.text
    assert reply.json()["message"]
