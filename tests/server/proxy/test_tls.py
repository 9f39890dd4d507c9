"""The wildcard TLS listener: guest ports by host name, on the same protocol class."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

from tests.server.proxy.stage import Stage, Wire, eventually

from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.server import tls

STREAM = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"


async def listen(stage: Stage, folder: Path) -> int:
    folders = Folders(folder, folder, folder, folder)
    context = tls.context(Settings(folders=folders, domain="sbx.test"))
    server = stage.server
    assert server is not None
    listener = await asyncio.get_running_loop().create_server(
        lambda: stage.protocol(server.config, server.server_state, {}),
        "127.0.0.1",
        0,
        ssl=context,
    )
    stage.stack.callback(listener.close)
    port: int = listener.sockets[0].getsockname()[1]
    return port


async def secure_wire(stage: Stage, port: int, folder: Path, name: str) -> Wire:
    trust = ssl.create_default_context(cafile=folder / "tls" / "ca.pem")
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=trust, server_hostname=name
    )
    stage.stack.callback(writer.close)
    return Wire(reader, writer)


async def test_guest_ports_by_host_name(stage: Stage, tmp_path: Path) -> None:
    app = await stage.guest(name="app")
    route = stage.sandbox(await stage.guest())
    port = await listen(stage, tmp_path)
    name = f"{app.port}-{route.sandbox_id}.sbx.test"
    wire = await secure_wire(stage, port, tmp_path, name)
    body = "x" * 300_000
    for _ in range(2):
        await wire.send(f"POST / HTTP/1.1\r\nHost: {name}:{port}\r\n")
        await wire.send(f"Content-Length: {len(body)}\r\n\r\n{body}")
        answer = await wire.answer()
        assert (answer.json["guest"], answer.json["body"]) == ("app", body)
    await wire.send("GET / nonsense\r\n\r\n")
    assert (await wire.answer()).status == 400
    assert await wire.rest() == b""


async def test_streams_end_with_the_sandbox_and_with_the_client(
    stage: Stage, tmp_path: Path
) -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(STREAM + b"3\r\nabc\r\n")
        await reader.read()

    app = await stage.guest(handler)
    route = stage.sandbox(app)
    port = await listen(stage, tmp_path)
    name = f"{app.port}-{route.sandbox_id}.sbx.test"
    killed, left = [await secure_wire(stage, port, tmp_path, name) for _ in range(2)]
    for wire in (killed, left):
        await wire.send(f"GET / HTTP/1.1\r\nHost: {name}\r\n\r\n")
        await wire.head()
        assert await wire.reader.readexactly(8) == b"3\r\nabc\r\n"
    left.close()
    await eventually(lambda: app.open == 1)
    stage.table.withdraw(route.sandbox_id)
    assert await killed.rest() == b""
    await eventually(lambda: app.open == 0)
