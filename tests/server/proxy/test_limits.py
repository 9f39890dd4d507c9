"""Bounds and deadlines: nothing waits forever, nobody takes everything."""

from __future__ import annotations

import asyncio

import pytest
from tests.server.proxy.stage import Stage, eventually, read_request, to

from aenv.server.proxy import ProxySettings


async def test_a_held_sandbox_parks_new_requests(stage: Stage) -> None:
    agent = await stage.guest()
    route, other = stage.sandbox(agent), stage.sandbox(agent)
    gate = stage.protocol.proxy.gate
    await gate.hold(route.sandbox_id)
    wire, free = await stage.wire(), await stage.wire()
    await wire.send(f"POST / HTTP/1.1\r\n{to(route)}Content-Length: 4\r\n\r\nbody")
    await free.send(f"GET / HTTP/1.1\r\n{to(other)}\r\n")
    assert (await free.answer()).status == 200
    assert len(agent.requests) == 1
    await gate.release(route.sandbox_id)
    assert (await wire.answer()).json["body"] == "body"
    assert stage.stats.parked == 1


async def test_a_parked_request_of_a_client_that_left_is_never_sent(stage: Stage) -> None:
    agent = await stage.guest()
    route = stage.sandbox(agent)
    gate = stage.protocol.proxy.gate
    await gate.hold(route.sandbox_id)
    wire = await stage.wire()
    await wire.send(f"POST / HTTP/1.1\r\n{to(route)}Content-Length: 9\r\n\r\nbody")
    await eventually(lambda: stage.stats.parked == 1)
    wire.close()
    await eventually(lambda: stage.stats.requests_active == 0)
    await gate.release(route.sandbox_id)
    await asyncio.sleep(0)
    assert agent.connections == 0


@pytest.mark.parametrize(
    "stage", [ProxySettings(max_parked_per_sandbox=1, park_timeout=0.3)], indirect=True
)
async def test_parking_is_bounded_in_number_and_time(stage: Stage) -> None:
    route = stage.sandbox(await stage.guest())
    await stage.protocol.proxy.gate.hold(route.sandbox_id)
    first, second = await stage.wire(), await stage.wire()
    await first.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await eventually(lambda: stage.stats.parked == 1)
    await second.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    for wire in (second, first):
        answer = await wire.answer()
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")


async def test_a_sandbox_killed_while_held_is_not_found(stage: Stage) -> None:
    route = stage.sandbox(await stage.guest())
    gate = stage.protocol.proxy.gate
    await gate.hold(route.sandbox_id)
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await eventually(lambda: stage.stats.parked == 1)
    stage.table.withdraw(route.sandbox_id)
    await gate.release(route.sandbox_id)
    assert (await wire.answer()).status == 502


@pytest.mark.parametrize("stage", [ProxySettings(max_requests_per_sandbox=2)], indirect=True)
async def test_requests_in_flight_are_bounded_per_sandbox(stage: Stage) -> None:
    go = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await read_request(reader)
            await go.wait()
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    guest = await stage.guest(handler)
    route, other = stage.sandbox(guest), stage.sandbox(guest)
    wires = [await stage.wire() for _ in range(3)]
    for wire in wires[:2]:
        await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await eventually(lambda: guest.open == 2)
    await wires[2].send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    assert (await wires[2].answer()).status == 429
    await wires[2].send(f"GET / HTTP/1.1\r\n{to(other)}\r\n")
    go.set()
    for wire in wires:
        assert (await wire.answer()).status == 200
    await wires[2].send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    assert (await wires[2].answer()).status == 200


@pytest.mark.parametrize("stage", [ProxySettings(max_connections=2)], indirect=True)
async def test_client_connections_are_bounded(stage: Stage) -> None:
    held = [await stage.wire() for _ in range(2)]
    for wire in held:
        await wire.send("POST /c HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\n")
    await eventually(lambda: stage.stats.control_requests == 2)
    refused = await stage.wire()
    assert (await refused.answer()).status == 503
    assert await refused.rest() == b""
    held[0].close()
    await eventually(lambda: stage.stats.connections_open == 1)
    wire = await stage.wire()
    await wire.send("GET /c HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await wire.answer()).status == 200


@pytest.mark.parametrize("stage", [ProxySettings(max_connections=2)], indirect=True)
async def test_who_only_holds_connections_keeps_nobody_out(stage: Stage) -> None:
    busy, slow = await stage.wire(), await stage.wire()
    await busy.send("POST /c HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\n\r\n")
    await eventually(lambda: stage.stats.control_requests == 1)
    await slow.send("GET / HTTP/1.1\r\nX-A: ")
    wire = await stage.wire()
    await wire.send("GET /c HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await wire.answer()).status == 200
    assert await slow.rest() == b""
    assert stage.stats.connections_open == 2
    await busy.send("x")
    assert (await busy.answer()).status == 200


@pytest.mark.parametrize("stage", [ProxySettings(max_head_bytes=1000)], indirect=True)
@pytest.mark.parametrize("ended", ["\r\n\r\n", ""])
async def test_a_head_too_long(stage: Stage, ended: str) -> None:
    wire = await stage.wire()
    await wire.send("GET / HTTP/1.1\r\nHost: h\r\nX-A: " + "x" * 2000 + ended)
    assert (await wire.answer()).status == 431
    wire.half_close()
    assert await wire.rest() == b""


@pytest.mark.parametrize("stage", [ProxySettings(max_headers=10)], indirect=True)
async def test_too_many_headers(stage: Stage) -> None:
    for count, status in ((9, 200), (10, 431)):
        wire = await stage.wire()
        await wire.send("GET / HTTP/1.1\r\nHost: h\r\n" + "X-A: b\r\n" * count + "\r\n")
        assert (await wire.answer()).status == status


@pytest.mark.parametrize("stage", [ProxySettings(head_timeout=0.2)], indirect=True)
async def test_slow_heads_are_not_waited_for(stage: Stage) -> None:
    silent, slow = await stage.wire(), await stage.wire()
    await slow.send("GET / HTTP/1.1\r\nHost")
    assert (await slow.answer()).status == 408
    assert await silent.rest() == b""


@pytest.mark.parametrize("stage", [ProxySettings(keep_alive_timeout=0.2)], indirect=True)
async def test_idle_connections_are_closed(stage: Stage) -> None:
    route = stage.sandbox(await stage.guest())
    wires = [await stage.wire(), await stage.wire()]
    for wire, where in zip(wires, (to(route), "Host: h\r\n"), strict=True):
        await wire.send(f"GET / HTTP/1.1\r\n{where}\r\n")
        assert (await wire.answer()).status == 200
    for wire in wires:
        assert await wire.rest() == b""


@pytest.mark.parametrize("stage", [ProxySettings(upstream_idle_timeout=0.1)], indirect=True)
async def test_idle_connections_to_guests_are_closed(stage: Stage) -> None:
    guest = await stage.guest()
    route = stage.sandbox(guest)
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await wire.answer()
    await eventually(lambda: guest.open == 0)
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    assert (await wire.answer()).status == 200
    assert guest.connections == 2


@pytest.mark.parametrize("stage", [ProxySettings(upstream_idle_per_port=1)], indirect=True)
async def test_few_idle_connections_are_kept_per_port(stage: Stage) -> None:
    guest = await stage.guest()
    route = stage.sandbox(guest)
    wires = [await stage.wire() for _ in range(4)]
    for wire in wires:
        await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    for wire in wires:
        await wire.answer()
    await eventually(lambda: guest.open == 1)


async def test_a_route_that_moves_takes_its_requests_along(stage: Stage) -> None:
    """A resumed sandbox has another address: connections to the old one are not used again."""
    old, new = await stage.guest(name="old"), await stage.guest(name="new")
    route = stage.sandbox(old)
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    assert (await wire.answer()).json["guest"] == "old"
    stage.sandbox(new, sandbox_id=route.sandbox_id)
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    assert (await wire.answer()).json["guest"] == "new"
    await eventually(lambda: old.open == 0)


async def test_control_answers_before_the_upload_is_done(stage: Stage) -> None:
    wire = await stage.wire()
    await wire.send("POST /early HTTP/1.1\r\nHost: h\r\nContent-Length: 200000\r\n\r\n")
    assert (await wire.answer()).status == 401
    await wire.send(b"x" * 200_000 + b"GET /c HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await wire.answer()).json["path"] == "/c"
    await wire.send(
        "POST /early HTTP/1.1\r\nHost: h\r\nConnection: close\r\nContent-Length: 9\r\n\r\n"
    )
    assert (await wire.answer()).status == 401
    assert await wire.rest() == b""


async def test_control_gets_heads_to_the_byte(stage: Stage) -> None:
    wire = await stage.wire()
    await wire.send(
        "GET /a%2Fb?x=%20 HTTP/1.1\r\nHost: h\r\nX-API-Key: a\r\nX-API-Key: b\r\nCookie: q\r\n\r\n"
    )
    headers = (await wire.answer()).json["headers"]
    assert headers == [["host", "h"], ["x-api-key", "a"], ["x-api-key", "b"], ["cookie", "q"]]


async def test_an_unserved_upgrade_of_the_control_plane_stays_http(stage: Stage) -> None:
    route = stage.sandbox(await stage.guest(name="agent"))
    wire = await stage.wire()
    upgrade = "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n"
    await wire.send(f"GET /c HTTP/1.1\r\nHost: h\r\n{upgrade}\r\n")
    assert (await wire.answer()).json["guest"] == "control"
    await wire.send(f"GET /health HTTP/1.1\r\n{to(route)}\r\n")
    assert (await wire.answer()).json["guest"] == "agent"
    await wire.send("GET /c HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await wire.answer()).json["guest"] == "control"


@pytest.mark.parametrize("stage", [ProxySettings(body_timeout=0.2)], indirect=True)
async def test_bodies_for_control_must_keep_coming(stage: Stage) -> None:
    wire = await stage.wire()
    await wire.send("POST /c HTTP/1.1\r\nHost: h\r\nContent-Length: 9\r\n\r\nabc")
    assert await wire.rest() == b""


async def test_shutdown_finishes_what_is_under_way(stage: Stage) -> None:
    go = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        await go.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    guest = await stage.guest(handler)
    route = stage.sandbox(guest)
    busy, idle = await stage.wire(), await stage.wire()
    await busy.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await eventually(lambda: guest.open == 1 and stage.stats.connections_open == 2)
    stage.server.should_exit = True
    assert await idle.rest() == b""
    go.set()
    answer = await busy.answer()
    assert (answer.body, answer.headers["connection"]) == (b"ok", "close")
    assert await busy.rest() == b""


@pytest.mark.parametrize("stage", [ProxySettings(drain_timeout=0.2)], indirect=True)
async def test_shutdown_does_not_wait_for_streams_forever(stage: Stage) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        await reader.read()

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await wire.head()
    stage.server.should_exit = True
    assert await wire.rest() == b""


async def test_nothing_is_left_of_finished_traffic(stage: Stage) -> None:
    guest = await stage.guest()
    routes = [stage.sandbox(guest) for _ in range(3)]
    wire = await stage.wire()
    for route in routes:
        await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
        await wire.answer()
        stage.table.withdraw(route.sandbox_id)
    await eventually(lambda: guest.open == 0)
    assert stage.protocol.proxy._traffic == {}
    assert stage.stats.requests_active == 0
