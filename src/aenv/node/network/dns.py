"""Names for sandboxes: one forwarder for all slots, in the server's event loop.

Guests ask their gateway's port 53; the firewall turns that to the forwarder's port. It answers the
addresses of admitted slots only, so it is nobody else's resolver. While the server is down,
sandboxes have no names; open connections go on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections import Counter
from collections.abc import Iterator
from typing import Any

from aenv.models.egress import Egress
from aenv.models.errors import HostSetupError
from aenv.node.network import messages
from aenv.node.network.messages import Rcode
from aenv.node.network.resolvers import Resolvers
from aenv.node.network.upstream import ask_datagram, ask_stream

log = logging.getLogger(__name__)

_BIND_TRIES = 16
_IN_FLIGHT, _IN_FLIGHT_PER_CLIENT = 1024, 64
_STREAMS_PER_CLIENT = 16
_STREAM_IDLE = 10.0
_ATTEMPT_TIMEOUT = 2.0
_TOTAL_TIMEOUT = 8.0
_ROUNDS = 2


class Forwarder:
    def __init__(self, resolvers: Resolvers) -> None:
        self._resolvers = resolvers
        self._clients: dict[str, Egress] = {}
        self._in_flight: Counter[str] = Counter()
        self._streams: Counter[str] = Counter()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._datagrams: asyncio.DatagramTransport | None = None
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> int:
        """Bind one free port for datagrams and streams; return it."""
        loop = asyncio.get_running_loop()
        for _ in range(_BIND_TRIES):
            stream = _bound(socket.SOCK_STREAM, 0)
            port: int = stream.getsockname()[1]
            try:
                datagram = _bound(socket.SOCK_DGRAM, port)
            except OSError:
                stream.close()
                continue
            self._server = await asyncio.start_server(self._serve_stream, sock=stream)
            self._datagrams, _ = await loop.create_datagram_endpoint(
                lambda: _Datagrams(self), sock=datagram
            )
            self.port = port
            return port
        raise HostSetupError("No port is free for the DNS forwarder; is the port range exhausted?")

    def admit(self, guest: str, egress: Egress) -> None:
        """Answer ``guest`` from now on, as its policy says."""
        self._clients[guest] = egress

    def expel(self, guest: str) -> None:
        self._clients.pop(guest, None)

    async def close(self) -> None:
        if self._datagrams is not None:
            self._datagrams.close()
        if self._server is not None:
            self._server.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def receive(self, query: bytes, address: tuple[str, int]) -> None:
        """One datagram came in."""
        if address[0] in self._clients and messages.is_query(query):
            task = asyncio.get_running_loop().create_task(self._serve_datagram(query, address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _serve_datagram(self, query: bytes, address: tuple[str, int]) -> None:
        reply = await self._answer(query, address[0], stream=False)
        if self._datagrams is not None and not self._datagrams.is_closing():
            self._datagrams.sendto(reply, address)

    async def _serve_stream(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        client = writer.get_extra_info("peername")[0]
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            with _counted(self._streams, client):
                if client in self._clients and self._streams[client] <= _STREAMS_PER_CLIENT:
                    await self._converse(client, reader, writer)
        except (OSError, EOFError, TimeoutError):
            pass  # the guest went away or fell silent
        finally:
            writer.close()

    async def _converse(
        self, client: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while client in self._clients:
            async with asyncio.timeout(_STREAM_IDLE):
                length = int.from_bytes(await reader.readexactly(2), "big")
                query = await reader.readexactly(length)
            if not messages.is_query(query):
                return
            reply = await self._answer(query, client, stream=True)
            writer.write(len(reply).to_bytes(2, "big") + reply)
            async with asyncio.timeout(_STREAM_IDLE):
                await writer.drain()

    async def _answer(self, query: bytes, client: str, *, stream: bool) -> bytes:
        fault = messages.fault(query)
        if fault is not None:
            return messages.refusal(query, fault)
        egress = self._clients.get(client)
        if egress is None or not egress.resolves_names:
            return messages.refusal(query, Rcode.REFUSED)
        with _counted(self._in_flight, client):
            busy = self._in_flight[client] > _IN_FLIGHT_PER_CLIENT
            if busy or self._in_flight.total() > _IN_FLIGHT:
                return messages.refusal(query, Rcode.SERVER_FAILURE)
            servers = tuple(map(str, egress.dns_servers)) or self._resolvers.current()
            return await self._forward(query, servers, stream=stream)

    async def _forward(self, query: bytes, servers: tuple[str, ...], *, stream: bool) -> bytes:
        ours = messages.with_identity(query, secrets.randbelow(1 << 16))
        ask = ask_stream if stream else ask_datagram
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TOTAL_TIMEOUT):
                for server in servers * _ROUNDS:
                    try:
                        async with asyncio.timeout(_ATTEMPT_TIMEOUT):
                            reply = await ask(server, ours)
                    except (OSError, EOFError, TimeoutError) as error:
                        log.debug("dns server %s did not answer: %r", server, error)
                    else:
                        return messages.with_identity(reply, messages.identity(query))
        return messages.refusal(query, Rcode.SERVER_FAILURE)


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, forwarder: Forwarder) -> None:
        self._forwarder = forwarder

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._forwarder.receive(data, addr)


@contextlib.contextmanager
def _counted(counter: Counter[str], key: str) -> Iterator[None]:
    counter[key] += 1
    try:
        yield
    finally:
        counter[key] -= 1
        if not counter[key]:
            del counter[key]


def _bound(kind: socket.SocketKind, port: int) -> socket.socket:
    bound = socket.socket(socket.AF_INET, kind | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
    try:
        bound.bind(("0.0.0.0", port))
    except OSError:
        bound.close()
        raise
    return bound
