"""The server dies at any moment and comes back: nothing is lost, nothing leaks."""

from __future__ import annotations

import contextlib
import random
import re
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest
from tests.e2e.servers import LiveServer, remains
from tests.e2e.wire import Box, Wire

MakeServer = Callable[..., LiveServer]


def test_a_killed_server_takes_over_what_runs(make_server: MakeServer):
    server = make_server()
    server.start()
    wire = Wire(server)
    boxes = [wire.create(metadata={"number": str(number)}) for number in range(2)]
    for box in boxes:
        assert wire.run(box, "echo before; echo kept > kept").exit_code == 0
        wire.run(box, "nohup sh -c 'sleep 1; echo while-down' & sleep 0.1")
    until(lambda: messages(wire, boxes[0]) >= {"before"})
    started_at = wire.detail(boxes[0]).json()["startedAt"]
    server.kill()
    time.sleep(1.5)  # the sandboxes live on their own meanwhile
    assert server.start() < 15
    wire = Wire(server)
    assert wire.ids() == {box.id for box in boxes}
    for box in boxes:
        assert wire.run(box, "cat kept").stdout == "kept\n"
    assert wire.detail(boxes[0]).json()["startedAt"] == started_at
    until(lambda: messages(wire, boxes[0]) >= {"before", "while-down"})
    assert wire.http.get(f"/sandboxes/{boxes[0].id}/metrics").json()
    assert [wire.delete(box) for box in boxes] == [204, 204]


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_a_polite_end_leaves_sandboxes_running(make_server: MakeServer, sent: signal.Signals):
    server = make_server()
    server.start()
    box = Wire(server).create()
    assert server.stop(sent) == 0
    assert any(box.id in one for one in remains(server))
    server.start()
    assert Wire(server).run(box, "echo here").stdout == "here\n"


def test_a_stream_survives_nothing_but_its_command_does(make_server: MakeServer):
    server = make_server()
    server.start()
    wire = Wire(server)
    box = wire.create()
    running = threading.Thread(target=_lose_answer, args=(wire, box))
    running.start()
    second = Wire(server)
    until(lambda: second.run(box, "cat go 2>/dev/null").stdout == "go\n")
    server.kill()
    running.join(30)
    server.start()
    until(lambda: Wire(server).run(box, "cat done 2>/dev/null").stdout == "done\n")


def test_a_sandbox_that_died_meanwhile_is_known_to_have_ended(make_server: MakeServer):
    server = make_server()
    server.start()
    wire = Wire(server)
    box, other = wire.create(), wire.create()
    wire.run(box, "nohup sh -c 'sleep 1; kill -9 1' >/dev/null 2>&1 & sleep 0.1", user="root")
    server.kill()
    time.sleep(2)  # it dies while nobody watches
    server.start()
    wire = Wire(server)
    assert wire.ids() == {other.id}
    assert wire.detail(box).status_code == 404
    until(lambda: not [one for one in remains(server) if box.id in one])


def test_a_timeout_that_passed_meanwhile_is_enforced(make_server: MakeServer):
    server = make_server()
    server.start()
    wire = Wire(server)
    short, long = wire.create(timeout=2), wire.create(timeout=600)
    server.kill()
    time.sleep(2.5)  # the point of the test: time passes while nobody watches
    server.start()
    wire = Wire(server)
    until(lambda: wire.ids() == {long.id})
    until(lambda: not [one for one in remains(server) if short.id in one])


@pytest.mark.timeout(600)
def test_kills_at_random_moments_of_creates_and_deletes_leak_nothing(make_server: MakeServer):
    server = make_server()
    chance = random.Random(20260701)
    known: dict[str, Box] = {}
    server.start()
    for _ in range(6):
        wire = Wire(server)
        victims = [known.pop(one) for one in list(known)[:1]]
        with ThreadPoolExecutor(6) as pool:
            creates = [pool.submit(_try_create, server) for _ in range(4)]
            deletes = [pool.submit(_try_delete, server, box) for box in victims]
            time.sleep(chance.uniform(0.0, 1.2))
            server.kill()
            made = [one.result() for one in creates]
            [one.result() for one in deletes]
        server.start()
        wire = Wire(server)
        known |= {box.id: box for box in made if box is not None}
        alive = wire.ids()
        assert known.keys() <= alive, "a sandbox that was answered for is lost"
        for box in known.values():
            assert wire.run(box, "echo alive").stdout == "alive\n"
        for stranger in alive - known.keys():  # made, but its creator never heard of it
            assert wire.http.delete(f"/sandboxes/{stranger}").status_code == 204
        until(partial(_nothing_leaks, server, frozenset(known)), timeout=30)


def test_what_a_dead_server_left_can_be_ended_without_it(make_server: MakeServer):
    server = make_server()
    server.start()
    wire = Wire(server)
    wire.create()
    wire.create(engine="process")
    server.kill()
    assert "it left 2 sandboxes running" in server.told("down")
    assert remains(server) != []
    assert "killed 2 sandboxes it had left running" in server.told("down", "--kill")
    assert remains(server) == []
    server.start()
    assert Wire(server).ids() == set()


def test_two_servers_side_by_side_do_not_see_each_other(make_server: MakeServer):
    first, second = make_server(), make_server()
    first.start()
    second.start()
    mine, other = Wire(first).create(), Wire(second).create()
    assert (Wire(first).ids(), Wire(second).ids()) == ({mine.id}, {other.id})
    first.kill()
    first.start()
    assert Wire(second).run(other, "echo fine").stdout == "fine\n"
    assert Wire(first).run(mine, "echo fine").stdout == "fine\n"


def test_a_second_server_on_the_same_data_folder_is_refused(make_server: MakeServer):
    server = make_server()
    server.start()
    twin = LiveServer(server.folder, api_key=server.api_key)
    with pytest.raises(AssertionError, match="ended at its start"):
        twin.start()
    assert Wire(server).ids() == set()


def messages(wire: Wire, box: Box) -> set[str]:
    return {entry["message"] for entry in wire.logs(box)}


def until(condition: Callable[[], object], *, timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


def _try_create(server: LiveServer) -> Box | None:
    try:
        return Wire(server).create()
    except (httpx.TransportError, AssertionError):
        return None


def _try_delete(server: LiveServer, box: Box) -> None:
    with contextlib.suppress(httpx.TransportError):
        Wire(server).delete(box)


def _lose_answer(wire: Wire, box: Box) -> None:
    with pytest.raises(httpx.TransportError):
        wire.run(box, "echo go > go; sleep 3; echo done > done")


def _nothing_leaks(server: LiveServer, known: frozenset[str]) -> bool:
    """Whether every trace of a sandbox on the host belongs to one the server knows."""
    traces = "\n".join(remains(server))
    return set(re.findall(r"\bi[a-z0-9]{19}\b", traces)) <= known
