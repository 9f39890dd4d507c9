"""Asking one DNS server, by datagram (a fresh port per question) or by stream."""

from __future__ import annotations

import asyncio
import contextlib

from aenv.node.network import messages

PORT = 53


async def ask_datagram(server: str, query: bytes, port: int = PORT) -> bytes:
    """The caller sets the deadline. Replies that do not belong to the query are ignored."""
    loop = asyncio.get_running_loop()
    reply: asyncio.Future[bytes] = loop.create_future()
    transport, _ = await loop.create_datagram_endpoint(
        lambda: _Question(query, reply), remote_addr=(server, port)
    )
    try:
        transport.sendto(query)
        return await reply
    finally:
        transport.close()


async def ask_stream(server: str, query: bytes, port: int = PORT) -> bytes:
    reader, writer = await asyncio.open_connection(server, port)
    try:
        writer.write(len(query).to_bytes(2, "big") + query)
        await writer.drain()
        length = int.from_bytes(await reader.readexactly(2), "big")
        reply = await reader.readexactly(length)
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    if not messages.answers(reply, query):
        raise EOFError("the answer belongs to another question")
    return reply


class _Question(asyncio.DatagramProtocol):
    def __init__(self, query: bytes, reply: asyncio.Future[bytes]) -> None:
        self._query = query
        self._reply = reply

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        if not self._reply.done() and messages.answers(data, self._query):
            self._reply.set_result(data)

    def error_received(self, exc: Exception) -> None:
        if not self._reply.done():
            self._reply.set_exception(exc)
