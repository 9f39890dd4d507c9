"""Streams: what flows, flows at once; who leaves is noticed; nobody's slowness fills our memory."""

from __future__ import annotations

import asyncio
import socket

import pytest
from tests.server.proxy.stage import Stage, eventually, to

from aenv.server.proxy import ProxySettings

STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


def streaming(*pieces: bytes) -> object:
    """A guest that sends a head and pieces, and waits for the client to go."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:
            writer.write(piece)
        await writer.drain()
        await reader.read()

    return handler


async def test_each_chunk_comes_as_it_is_sent(stage: Stage) -> None:
    step = asyncio.Semaphore(0)

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAM)
        for piece in (b"one", b"two", b""):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await step.acquire()

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    assert (await wire.head())[0] == 200
    assert await wire.reader.readexactly(8) == b"3\r\none\r\n"
    step.release()
    assert await wire.reader.readexactly(8) == b"3\r\ntwo\r\n"
    step.release()
    assert await wire.reader.readexactly(5) == b"0\r\n\r\n"
    step.release()


async def test_a_request_may_stream_while_its_answer_does(stage: Stage) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAM)
        while line := await reader.readuntil(b"\r\n"):
            size = int(line, 16)
            piece = await reader.readexactly(size + 2)
            writer.write(line + piece)
            if not size:
                break

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    await wire.send(f"POST / HTTP/1.1\r\n{to(route)}Transfer-Encoding: chunked\r\n\r\n")
    assert (await wire.head())[0] == 200
    for word in (b"alpha", b"omega"):
        await wire.send(b"5\r\n%b\r\n" % word)
        assert await wire.reader.readexactly(10) == b"5\r\n%b\r\n" % word
    await wire.send("0\r\n\r\n")
    assert await wire.reader.readexactly(5) == b"0\r\n\r\n"
    await wire.send("GET /c HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await wire.answer()).json["guest"] == "control"


@pytest.mark.parametrize(
    "sent",
    [
        STREAM + b"3\r\nabc\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\n\r\nabc",
    ],
    ids=["chunked", "length", "until close"],
)
async def test_a_kill_cuts_streams_short(stage: Stage, sent: bytes) -> None:
    guest = await stage.guest(streaming(sent))
    route, other = stage.sandbox(guest), stage.sandbox(guest)
    wire, neighbour = await stage.wire(), await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await neighbour.send(f"GET / HTTP/1.1\r\n{to(other)}\r\n")
    await wire.head()
    await neighbour.head()
    stage.table.withdraw(route.sandbox_id)
    rest = await wire.rest()
    assert rest in (b"3\r\nabc\r\n", b"abc")
    assert stage.stats.aborted == 1
    await eventually(lambda: guest.open == 1)
    again = await stage.wire()
    await again.send(f"GET /health HTTP/1.1\r\n{to(route)}\r\n")
    assert (await again.answer()).json["message"] == "The sandbox was not found"


async def test_a_kill_resets_clients_that_take_closing_for_an_end(stage: Stage) -> None:
    route = stage.sandbox(await stage.guest(streaming(b"HTTP/1.1 200 OK\r\n\r\nabc")))
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.0\r\n{to(route)}\r\n")
    await wire.head()
    assert await wire.reader.readexactly(3) == b"abc"
    stage.table.withdraw(route.sandbox_id)
    with pytest.raises(ConnectionResetError):
        await wire.reader.read()


async def test_a_kill_before_the_answer_is_told(stage: Stage) -> None:
    guest = await stage.guest(streaming())
    route = stage.sandbox(guest)
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await eventually(lambda: guest.open == 1)
    stage.table.withdraw(route.sandbox_id)
    assert (await wire.answer()).json["message"] == "The sandbox was not found"
    await wire.send("GET /c HTTP/1.1\r\nHost: h\r\n\r\n")
    assert (await wire.answer()).json["guest"] == "control"


@pytest.mark.parametrize(
    "sent", [STREAM + b"9\r\nabc", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc"]
)
async def test_a_guest_that_dies_in_its_answer_cuts_the_client_off(
    stage: Stage, sent: bytes
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(sent)

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await wire.head()
    assert b"0\r\n\r\n" not in await wire.rest()


async def test_the_guest_learns_at_once_that_the_client_left(stage: Stage) -> None:
    guest = await stage.guest(streaming(STREAM))
    route = stage.sandbox(guest)
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await wire.head()
    wire.close()
    await eventually(lambda: guest.open == 0, within=1)


async def test_a_client_that_leaves_in_its_upload_takes_the_guest_connection_along(
    stage: Stage,
) -> None:
    guest = await stage.guest(streaming())
    route = stage.sandbox(guest)
    wire = await stage.wire()
    await wire.send(f"POST / HTTP/1.1\r\n{to(route)}Content-Length: 99\r\n\r\nabc")
    await eventually(lambda: guest.open == 1)
    wire.close()
    await eventually(lambda: guest.open == 0, within=1)
    assert stage.stats.requests_active == 0


async def test_a_client_may_half_close_and_read_on(stage: Stage) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    wire.half_close()
    assert (await wire.answer()).body == b"ok"
    assert await wire.rest() == b""


@pytest.mark.parametrize("stage", [ProxySettings(half_close_timeout=0.1)], indirect=True)
async def test_a_half_closed_client_does_not_wait_forever(stage: Stage) -> None:
    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(20)

    route = stage.sandbox(await stage.guest(deaf))
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    wire.half_close()
    assert await wire.rest() == b""
    assert stage.stats.requests_active == 0


@pytest.mark.parametrize("stage", [ProxySettings(connect_timeout=0.2)], indirect=True)
async def test_a_guest_that_does_not_accept_is_504(stage: Stage) -> None:
    """A frozen guest: its SYN queue is full, nothing answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as deaf:
        port = deaf.getsockname()[1]
        held = []
        for _ in range(4):
            one = socket.socket()
            one.setblocking(False)
            one.connect_ex(("127.0.0.1", port))
            held.append(one)
        route = stage.sandbox(await stage.guest())
        wire = await stage.wire()
        await wire.send(f"POST / HTTP/1.1\r\n{to(route, port)}Content-Length: 3\r\n\r\nabc")
        answer = await wire.answer()
        assert (answer.status, answer.json["port"]) == (504, port)
        for one in held:
            one.close()
    await wire.send(f"GET /health HTTP/1.1\r\n{to(route)}\r\n")
    assert (await wire.answer()).status == 200
