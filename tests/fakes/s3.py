"""A real S3 server (s3s-fs, see scripts/s3), and a wire to it that can be cut, stalled or made to
answer by itself.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aenv.models.folders import Folders

VERSION = "0.14.1"
KEY, SECRET, BUCKET = "key", "secret", "blobs"


@dataclass
class Wire:
    """``answers``: what the next connections get instead of the server, in order; b"" cuts them.
    ``down``: nobody answers. ``stalled``: connections are taken, and nothing comes.
    """

    port: int
    upstream: int
    root: Path
    answers: list[bytes] = field(default_factory=list)
    down: bool = False
    stalled: bool = False
    connections: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End the connections there are: new ones see what was set."""
        for writer in self._open:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._open.add(writer)
        try:
            if self.down:
                writer.transport.abort()
            elif self.answers:
                await _answer(self.answers.pop(0), reader, writer)
            elif self.stalled:
                await asyncio.sleep(3600)
            else:
                await self._relay(reader, writer)
        finally:
            self._open.discard(writer)
            writer.close()

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        inner, outer = await asyncio.open_connection("127.0.0.1", self.upstream)
        try:
            _, pending = await asyncio.wait(
                {
                    asyncio.ensure_future(_pump(reader, outer)),
                    asyncio.ensure_future(_pump(inner, writer)),
                },
                return_when=asyncio.FIRST_COMPLETED,
            )
            for task in pending:
                task.cancel()
        finally:
            outer.close()


def status(line: str, code: str = "Error") -> bytes:
    body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message></Error>"
    head = f"HTTP/1.1 {line}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return (head + body).encode()


@asynccontextmanager
async def s3_server(folder: Path) -> AsyncIterator[Wire]:
    """With a bucket. Skips where the server was not built."""
    binary = Folders.resolve().cache / "tools" / f"s3s-fs-{VERSION}" / "bin" / "s3s-fs"
    if not binary.exists():
        pytest.skip("there is no S3 server here: run scripts/s3")
    root = folder / "s3"
    (root / BUCKET).mkdir(parents=True)
    port = _free_port()
    command = [str(binary), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--access-key", KEY, "--secret-key", SECRET, str(root)]
    quiet = asyncio.subprocess.DEVNULL
    server = await asyncio.create_subprocess_exec(*command, stdout=quiet, stderr=quiet)
    try:
        await _until_open(port)
        wire = Wire(0, port, root)
        listener = await asyncio.start_server(wire.serve, "127.0.0.1", 0)
        wire.port = listener.sockets[0].getsockname()[1]
        yield wire
        listener.close()
        wire.cut()
    finally:
        server.kill()
        await server.wait()


async def _answer(
    answer: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(answer)
    with suppress(ConnectionError):
        await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()


async def _until_open(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
