"""While a sandbox is frozen nothing is sent to it, nothing is lost, and streams go on after it."""

from __future__ import annotations

import asyncio

import pytest
from tests.server.proxy.stage import Stage, eventually, read_request, to

from aenv.control.visitors import Visitor
from aenv.server.proxy import Gate, GateFullError


@pytest.fixture
def gate() -> Gate:
    return Gate(max_waiting=2, timeout=5)


async def test_no_connection_is_made_while_held(gate: Gate) -> None:
    await gate.hold("i")
    made = asyncio.Event()

    async def connect() -> None:
        async with gate.passing("i"):
            made.set()

    connecting = asyncio.create_task(connect())
    await asyncio.sleep(0.05)
    assert not made.is_set()
    await gate.release("i")
    await connecting
    assert made.is_set()


async def test_a_hold_waits_for_connections_being_made(gate: Gate) -> None:
    made = asyncio.Event()
    begun = asyncio.Event()

    async def connect() -> None:
        async with gate.passing("i"):
            begun.set()
            await made.wait()

    connecting = asyncio.create_task(connect())
    await begun.wait()
    holding = asyncio.create_task(gate.hold("i"))
    await asyncio.sleep(0.05)
    assert not holding.done()
    assert "i" in gate
    made.set()
    await holding
    await connecting
    await gate.release("i")
    assert "i" not in gate


async def test_a_connection_that_never_comes_does_not_keep_a_hold(gate: Gate) -> None:
    begun = asyncio.Event()

    async def connect() -> None:
        async with gate.passing("i"):
            begun.set()
            await asyncio.Event().wait()

    connecting = asyncio.create_task(connect())
    await begun.wait()
    async with asyncio.timeout(3):
        await gate.hold("i")
    connecting.cancel()
    await asyncio.wait({connecting})


async def test_a_hold_that_is_given_up_holds_nothing(gate: Gate) -> None:
    begun = asyncio.Event()

    async def connect() -> None:
        async with gate.passing("i"):
            begun.set()
            await asyncio.Event().wait()

    connecting = asyncio.create_task(connect())
    await begun.wait()
    holding = asyncio.create_task(gate.hold("i"))
    await eventually(lambda: "i" in gate)
    holding.cancel()
    await asyncio.wait({holding})
    assert "i" not in gate
    connecting.cancel()
    await asyncio.wait({connecting})


async def test_connections_waiting_are_bounded(gate: Gate) -> None:
    await gate.hold("i")
    waiting = [asyncio.create_task(gate.passage("i")) for _ in range(2)]
    await asyncio.sleep(0)
    with pytest.raises(GateFullError):
        async with gate.passing("i"):
            pass
    await gate.release("i")
    await asyncio.gather(*waiting)


async def test_a_repeated_request_waits_too(stage: Stage) -> None:
    """The guest closes an idle connection just as it is used, and just as it is frozen."""
    close = asyncio.Event()
    seen = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal seen
        while True:
            await read_request(reader)
            seen += 1
            if seen == 2:
                await close.wait()
                return
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()

    agent = await stage.guest(handler)
    route = stage.sandbox(agent)
    gate = stage.protocol.proxy.gate
    wire = await stage.wire()
    request = f"GET / HTTP/1.1\r\n{to(route)}\r\n"
    await wire.send(request)
    assert (await wire.answer()).status == 200
    await wire.send(request)
    await eventually(lambda: seen == 2)
    await gate.hold(route.sandbox_id)
    close.set()
    await eventually(lambda: stage.stats.parked == 1)
    assert agent.connections == 1
    await gate.release(route.sandbox_id)
    assert (await wire.answer()).body == b"ok"
    assert (agent.connections, stage.stats.upstream_retries) == (2, 1)


async def test_a_request_between_route_and_guest_is_served_after_a_pause() -> None:
    """It waits to connect, the sandbox is paused meanwhile, and traffic resumes it elsewhere."""
    stage = Stage()
    waking = asyncio.Event()

    async def resolve(sandbox_id: str, visitor: Visitor) -> object:
        waking.set()
        return stage.sandbox(second, sandbox_id=sandbox_id)

    stage.resolve = resolve
    async with stage.stack:
        await stage.start()
        first, second = await stage.guest(name="first"), await stage.guest(name="second")
        route = stage.sandbox(first)
        gate = stage.protocol.proxy.gate
        wire = await stage.wire()
        hold = gate.hold
        started = asyncio.Event()

        async def dial_into_a_hold(sandbox_id: str) -> None:
            started.set()
            await hold(sandbox_id)
            await passage(sandbox_id)

        passage, gate.passage = gate.passage, dial_into_a_hold
        await wire.send(f"POST / HTTP/1.1\r\n{to(route)}Content-Length: 4\r\n\r\nbody")
        await started.wait()
        gate.passage = passage
        stage.table.withdraw(route.sandbox_id)
        await gate.release(route.sandbox_id)

        answer = await wire.answer()
        assert (answer.json["guest"], answer.json["body"]) == ("second", "body")
        assert waking.is_set()
        assert first.connections == 0


async def test_answers_under_way_are_cut_by_a_pause_and_go_on_over_a_snapshot(
    stage: Stage,
) -> None:
    go = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n")
        await writer.drain()
        await go.wait()
        writer.write(b"1\r\nb\r\n0\r\n\r\n")
        await writer.drain()

    agent = await stage.guest(handler)
    route = stage.sandbox(agent)
    gate = stage.protocol.proxy.gate
    through, cut = await stage.wire(), await stage.wire()
    await through.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    assert (await through.head())[0] == 200
    await gate.hold(route.sandbox_id)
    await gate.release(route.sandbox_id)
    go.set()
    assert (await through.chunks())[0] == b"ab"

    go.clear()
    await cut.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    assert (await cut.head())[0] == 200
    await gate.hold(route.sandbox_id)
    stage.table.withdraw(route.sandbox_id)
    await gate.release(route.sandbox_id)
    assert not (await cut.rest()).endswith(b"0\r\n\r\n")
