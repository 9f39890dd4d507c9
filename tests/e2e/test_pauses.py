"""The server dies around pauses, resumes and forks: nothing acknowledged is lost, nothing leaks."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable

import httpx
import pytest
from tests.e2e.servers import LiveServer, remains
from tests.e2e.test_crashes import until
from tests.e2e.wire import Box, Wire

MakeServer = Callable[..., LiveServer]
COUNTER = (
    "nohup sh -c 'i=0; while true; do i=$((i+1)); echo $i > c.new; mv c.new c; sleep 0.05; done'"
    " >/dev/null 2>&1 & sleep 0.3"
)


def counting(wire: Wire) -> Box:
    box = wire.create()
    wire.run(box, COUNTER)
    return box


def count(wire: Wire, box: Box) -> int:
    return int(wire.run(box, "cat c").stdout)


def goes_on(wire: Wire, box: Box, before: int) -> None:
    seen = count(wire, box)
    assert seen >= before
    until(lambda: count(wire, box) > seen)


def post(wire: Wire, box: Box, action: str) -> httpx.Response:
    path = (
        f"/v2/sandboxes/{box.id}/connect" if action == "connect" else f"/sandboxes/{box.id}/pause"
    )
    return wire.http.post(path, json={"timeout": 300}, timeout=60)


def state(wire: Wire, box: Box) -> str:
    return str(wire.detail(box).json()["state"])


def test_a_paused_sandbox_outlives_its_server_hot(make_server: MakeServer):
    server = make_server()
    server.start()
    wire = Wire(server)
    box = counting(wire)
    before = count(wire, box)
    assert post(wire, box, "pause").status_code == 204
    server.kill()
    server.start()
    wire = Wire(server)
    assert state(wire, box) == "paused"
    assert post(wire, box, "connect").status_code == 201
    assert wire.detail(box).json()["restored"] == "hot"
    goes_on(wire, box, before)
    assert post(wire, box, "pause").status_code == 204  # down --kill must clear it away, too


def test_a_snapshot_outlives_its_server_and_its_source(make_server: MakeServer):
    server = make_server()
    server.start()
    wire = Wire(server)
    box = counting(wire)
    before = count(wire, box)
    kept = wire.http.post(f"/sandboxes/{box.id}/snapshots", json={"name": "mine"}).json()
    assert wire.delete(box) == 204
    server.kill()
    server.start()
    wire = Wire(server)
    child = wire.create(templateID=kept["snapshotID"])
    goes_on(wire, child, before)
    assert wire.delete(child) == 204


@pytest.mark.timeout(600)
def test_a_server_that_dies_in_the_middle_loses_no_sandbox(make_server: MakeServer):
    """Killed at a random moment of a pause or resume: it runs or is paused, and goes on."""
    server = make_server()
    server.start()
    wire = Wire(server)
    box = counting(wire)
    chance = random.Random(4)
    for _ in range(8):
        before = count(wire, box)
        action = chance.choice(["pause", "resume"])
        if action == "resume":
            assert post(wire, box, "pause").status_code == 204
        asking = threading.Thread(
            target=_ask, args=(wire, box, "pause" if action == "pause" else "connect")
        )
        asking.start()
        time.sleep(chance.uniform(0, 0.25))
        server.kill()
        asking.join(60)
        server.start()
        wire = Wire(server)
        assert state(wire, box) in ("running", "paused")
        assert post(wire, box, "connect").status_code in (200, 201)
        goes_on(wire, box, before)
    assert wire.delete(box) == 204


def _ask(wire: Wire, box: Box, action: str) -> None:
    with contextlib.suppress(httpx.TransportError):
        post(wire, box, action)


def test_a_server_on_demand_ends_beside_a_paused_sandbox_and_the_next_has_it(
    make_server: MakeServer,
):
    server = make_server(AENV_IDLE_EXIT="6")
    server.start()
    wire = Wire(server)
    box = counting(wire)
    before = count(wire, box)
    assert post(wire, box, "pause").status_code == 204
    assert server.process is not None
    assert server.process.wait(60) == 0
    assert not [one for one in remains(server) if box.id in one], "its memory is given back"
    server.start()
    wire = Wire(server)
    assert state(wire, box) == "paused"
    assert post(wire, box, "connect").status_code == 201
    assert wire.detail(box).json()["restored"] == "warm"
    goes_on(wire, box, before)
