"""A client connection below its requests: who pauses it, what is overdue when, how it ends."""

from __future__ import annotations

import asyncio
import socket
import struct
from enum import IntEnum, IntFlag
from typing import Any, ClassVar, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from aenv.server.proxy.core import Proxy
from aenv.server.proxy.replies import Reply

_RESET = struct.pack("ii", 1, 0)
_EVICTED_AT_ONCE = 32
"""One part in so many: to look for them costs a walk over all."""


class Mode(IntEnum):
    """What the client's next byte belongs to.

    HEAD and BODY: of a request; NEXT: the request after the one that is being answered; RAW and
    CONTROL_RAW: an upgraded connection; LINGER: nothing, we have said our last.
    """

    HEAD = 0
    BODY = 1
    NEXT = 2
    RAW = 3
    CONTROL_RAW = 4
    LINGER = 5


class Pause(IntFlag):
    """Who wants the client not to be read from."""

    NOBODY = 0
    BUFFER = 1
    GUEST = 2
    CONTROL = 4


# Enum members looked up by attribute would cost a tenth of a request.
HEAD, BODY, NEXT, RAW, CONTROL_RAW, LINGER = Mode


class Connection(asyncio.Protocol):
    """Made by uvicorn, one per connection. Times are the loop's; a deadline of 0 is none."""

    proxy: ClassVar[Proxy]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self.config = config
        self.server_state = server_state
        self.app_state = app_state
        self.loop = _loop or asyncio.get_running_loop()
        self.transport: asyncio.Transport = cast("asyncio.Transport", None)
        self.write_paused = False
        self.closing = False
        self._mode = HEAD
        self._buffer = bytearray()
        self._pauses = Pause.NOBODY
        self._deadline = 0.0
        self._waits_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        proxy = self.proxy
        proxy.stats.connections += 1
        if len(proxy.clients) >= proxy.settings.max_connections and not self._make_room():
            proxy.stats.refused_limit += 1
            reply = Reply(503, "The server has too many connections", retry_after=1)
            self.transport.write(reply.encode(html=False, head_only=False, close=True))
            self._mode = LINGER
            self.transport.close()
            return
        proxy.stats.connections_open += 1
        proxy.join(self, self.loop)
        self.server_state.connections.add(cast("Any", self))
        self._set_deadline(proxy.settings.head_timeout)
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self.server_state.connections.discard(cast("Any", self))
        self._deadline = 0.0

    def is_closing(self) -> bool:
        return self._mode is LINGER or self.transport.is_closing()

    def check(self, now: float) -> None:
        """End what is overdue."""
        if not self._deadline or now < self._deadline:
            return
        self._deadline = 0.0
        if self._mode is not HEAD:
            self.transport.abort()
        elif self._buffer:
            self._refuse(Reply(408, "The request head did not come in time"))
        else:
            self.transport.close()

    def _set_deadline(self, seconds: float) -> None:
        self._waits_since = self.loop.time()
        self._deadline = self._waits_since + seconds

    def _make_room(self) -> bool:
        """Hang up on some who owe us a request, the longest silent first: a client that only holds
        connections shall not keep others out. False: everybody is being served.
        """
        proxy = self.proxy
        others = (client for client in proxy.clients if isinstance(client, Connection))
        silent = [client for client in others if client._mode in (HEAD, LINGER)]
        silent.sort(key=lambda client: client._waits_since)
        for client in silent[: 1 + proxy.settings.max_connections // _EVICTED_AT_ONCE]:
            proxy.stats.evicted += 1
            client._leave()
            client.transport.abort()
        return bool(silent)

    def _leave(self) -> None:
        if self in self.proxy.clients:
            self.proxy.clients.discard(self)
            self.proxy.stats.connections_open -= 1

    def _pause(self, who: Pause, paused: bool) -> None:
        before = self._pauses
        self._pauses = before | who if paused else before & ~who
        if bool(before) is bool(self._pauses) or self.transport.is_closing():
            return
        if self._pauses:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    def _resume(self) -> None:
        if self._pauses:
            self._pause(self._pauses, False)

    def _refuse(self, reply: Reply) -> None:
        """Answer what cannot be read, and close."""
        self.proxy.stats.refused_malformed += 1
        self.closing = True
        self._buffer.clear()
        self.transport.write(reply.encode(html=False, head_only=False, close=True))
        self._linger()

    def _linger(self) -> None:
        """Half-close and read on for a while: to close with bytes unread could cost our answer."""
        self._mode = LINGER
        self._resume()
        self._set_deadline(self.proxy.settings.linger_timeout)
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _cut(self, *, reset: bool) -> None:
        """Close at once; with ``reset`` even a client that takes closing for an end must notice."""
        sock = self.transport.get_extra_info("socket") if reset else None
        if sock is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()
