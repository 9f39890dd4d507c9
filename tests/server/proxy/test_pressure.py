"""Back-pressure both ways, raw splices, and the sockets themselves."""

from __future__ import annotations

import asyncio
import socket

from tests.server.proxy.stage import Stage, eventually, to
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def test_a_slow_client_holds_the_guest_back(stage: Stage) -> None:
    sent = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAM)
        for _ in range(1000):
            writer.write(b"10000\r\n" + b"x" * 65536 + b"\r\n")
            await writer.drain()
            sent += 65536
        writer.write(b"0\r\n\r\n")

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await wire.head()
    before = -1
    while sent != before:
        before = sent
        await asyncio.sleep(0.2)
    assert sent < 40_000_000
    async with asyncio.timeout(30):
        body, _ = await wire.chunks()
    assert len(body) == 65_536_000


async def test_a_slow_guest_holds_the_client_back(stage: Stage) -> None:
    go = asyncio.Event()
    got = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal got
        await reader.readuntil(b"\r\n\r\n")
        await go.wait()
        while got < 60_000_000:
            got += len(await reader.read(1 << 20))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    wire.writer.write(f"POST / HTTP/1.1\r\n{to(route)}Content-Length: 60000000\r\n\r\n".encode())
    wire.writer.write(b"x" * 60_000_000)
    await eventually(lambda: stage.stats.bytes_to_guests > 0)
    before = -1
    while stage.stats.bytes_to_guests != before:
        before = stage.stats.bytes_to_guests
        await asyncio.sleep(0.2)
    assert before < 30_000_000
    go.set()
    assert (await wire.answer()).status == 200


async def test_a_slow_client_holds_back_the_answers_to_all_it_pipelined(stage: Stage) -> None:
    served = 0

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        while await reader.readuntil(b"\r\n\r\n"):
            served += 1
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + b"x" * 1_000_000)
            await writer.drain()

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n" * 100)
    before = -1
    while served != before:
        before = served
        await asyncio.sleep(0.2)
    (client,) = stage.protocol.proxy.clients
    assert client.transport.get_write_buffer_size() < 2_000_000
    assert served < 60
    for _ in range(100):
        assert len((await wire.answer()).body) == 1_000_000


async def test_what_a_client_sends_too_early_is_bounded(stage: Stage) -> None:
    go = asyncio.Event()

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await go.wait()
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    route = stage.sandbox(await stage.guest(handler))
    wire = await stage.wire()
    early = "GET /c HTTP/1.1\r\nHost: h\r\nX-A: " + "x" * 50_000 + "\r\n\r\n"
    wire.writer.write((f"GET / HTTP/1.1\r\n{to(route)}\r\n" + early * 400).encode())
    await eventually(lambda: stage.stats.requests_active == 1)
    (client,) = stage.protocol.proxy.clients
    before = -1
    while len(client._buffer) != before:
        before = len(client._buffer)
        await asyncio.sleep(0.2)
    assert 0 < before < 1_000_000
    go.set()
    for _ in range(401):
        assert (await wire.answer()).status == 200


async def test_websockets(stage: Stage) -> None:
    async def echo(ws: object) -> None:
        async for message in ws:
            await ws.send(message)

    async with serve(echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        route = stage.sandbox(await stage.guest())
        headers = {"E2b-Sandbox-Id": route.sandbox_id, "E2b-Sandbox-Port": str(port)}
        url = f"ws://127.0.0.1:{stage.port}/x"
        async with connect(url, additional_headers=headers) as ws:
            for message in ("hello", b"\x00" * 300_000, "again"):
                await ws.send(message)
                assert await ws.recv() == message
            stage.table.withdraw(route.sandbox_id)
            await asyncio.wait_for(ws.wait_closed(), 5)
        assert stage.stats.upgrades == 1


async def test_any_upgrade_is_spliced_and_half_closed(stage: Stage) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert b"Upgrade: telnet\r\n" in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Go\r\nConnection: upgrade\r\nUpgrade: telnet\r\n\r\nfirst")
        assert await reader.read() == b"early late"
        writer.write(b"last")

    route = stage.sandbox(await stage.guest())
    app = await stage.guest(handler)
    wire = await stage.wire()
    await wire.send(
        f"GET / HTTP/1.1\r\n{to(route, app.port)}Connection: Upgrade\r\n"
        "Upgrade: telnet\r\n\r\nearly "
    )
    assert (await wire.head())[0] == 101
    assert await wire.reader.readexactly(5) == b"first"
    await wire.send("late")
    wire.half_close()
    assert await wire.rest() == b"last"


async def test_websockets_of_the_control_plane(stage: Stage) -> None:
    async with connect(f"ws://127.0.0.1:{stage.port}/ws") as ws:
        await ws.send("hello")
        assert await ws.recv() == "control:hello"


async def test_nagle_is_off_on_both_sides(stage: Stage) -> None:
    agent = await stage.guest()
    route = stage.sandbox(agent)
    wire = await stage.wire()
    await wire.send(f"GET / HTTP/1.1\r\n{to(route)}\r\n")
    await wire.answer()
    (client,) = stage.protocol.proxy.clients
    (pool,) = stage.protocol.proxy.traffic(route.sandbox_id).idle.values()
    for transport in (client.transport, pool[0].transport):
        sock = transport.get_extra_info("socket")
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
    assert client.transport.get_extra_info("socket").getsockopt(
        socket.SOL_SOCKET, socket.SO_KEEPALIVE
    )
