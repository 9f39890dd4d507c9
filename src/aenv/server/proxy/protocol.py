"""The HTTP protocol class of our server: one client connection, whose requests go to a sandbox or
to control.

A connection handles one request at a time, in order: bytes that come early wait (few of them; then
the client is not read from). The request's head and framing are read here, whoever gets it; what
does not parse is answered 400 and the connection closed. See ``exchange`` for the way to a sandbox
and ``control`` for the one to the ASGI application.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from enum import IntEnum, IntFlag
from typing import Any, ClassVar, cast

from uvicorn.config import Config
from uvicorn.server import ServerState

from aenv.control.routes import RouteTable
from aenv.models.errors import AenvError
from aenv.server.proxy.bodies import ChunkDecoder
from aenv.server.proxy.control import ControlChannel
from aenv.server.proxy.core import Proxy, Resolve
from aenv.server.proxy.exchange import Exchange
from aenv.server.proxy.heads import (
    MalformedHeadError,
    RequestHead,
    parse_request,
)
from aenv.server.proxy.replies import Reply
from aenv.server.proxy.rewriting import IsCredential
from aenv.server.proxy.routing import Target, find_target, is_proxy_path
from aenv.server.proxy.settings import ProxySettings
from aenv.server.proxy.signatures import is_signed

_RESET = struct.pack("ii", 1, 0)


class _Mode(IntEnum):
    """What the client's next byte belongs to."""

    HEAD = 0
    BODY = 1
    NEXT = 2
    RAW = 3
    CONTROL_RAW = 4
    LINGER = 5


class _Pause(IntFlag):
    """Who wants the client not to be read from."""

    BUFFER = 1
    GUEST = 2
    CONTROL = 4


class ProxyProtocol(asyncio.Protocol):
    """Made by uvicorn, one per connection; :func:`make_protocol` gives the class its proxy."""

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
        self._mode = _Mode.HEAD
        self._buffer = bytearray()
        self._pumping = False
        self._pauses = _Pause(0)
        self._deadline = 0.0
        self._eof = False
        self._guest_eof = False
        self._answered = False
        self._head: RequestHead | None = None
        self._left = 0
        self._decoder: ChunkDecoder | None = None
        self._exchange: Exchange | None = None
        self._control: ControlChannel | None = None
        self._to_control = False

    # The transport's calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        proxy = self.proxy
        proxy.stats.connections += 1
        if len(proxy.clients) >= proxy.settings.max_connections:
            proxy.stats.refused_limit += 1
            reply = Reply(503, "The server has too many connections", retry_after=1)
            self.transport.write(reply.encode(html=False, head_only=False, close=True))
            self._mode = _Mode.LINGER
            self.transport.close()
            return
        proxy.stats.connections_open += 1
        proxy.join(self, self.loop)
        self.server_state.connections.add(cast("Any", self))
        self._deadline = self.loop.time() + proxy.settings.head_timeout
        sock = self.transport.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def connection_lost(self, exc: Exception | None) -> None:
        if self in self.proxy.clients:
            self.proxy.clients.discard(self)
            self.proxy.stats.connections_open -= 1
        self.server_state.connections.discard(cast("Any", self))
        self._deadline = 0.0
        if self._exchange is not None:
            self._exchange.client_gone()
            self._exchange = None
        if self._control is not None:
            self._control.lost(exc)
            self._control = None

    def data_received(self, data: bytes) -> None:
        self._pump(data)

    def eof_received(self) -> bool:
        if self._mode is _Mode.CONTROL_RAW and self._control is not None:
            return self._control.eof()
        if self._exchange is None or not self.transport.can_write_eof():
            return False
        if self._mode is _Mode.RAW and self._guest_eof:
            return False
        if self._mode not in (_Mode.RAW, _Mode.NEXT):
            return False
        self._eof = True
        settings = self.proxy.settings
        raw = self._mode is _Mode.RAW
        grace = settings.keep_alive_timeout if raw else settings.half_close_timeout
        self._deadline = self.loop.time() + grace
        if not self._buffer:
            self._exchange.client_eof()
        return True

    def pause_writing(self) -> None:
        self._set_write_paused(True)

    def resume_writing(self) -> None:
        self._set_write_paused(False)

    def _set_write_paused(self, paused: bool) -> None:
        self.write_paused = paused
        if self._exchange is not None:
            self._exchange.client_paused(paused)
        if self._control is not None:
            self._control.paused(paused)

    # The server's and the proxy's calls.

    def shutdown(self) -> None:
        """Finish the request under way, within the drain time, and close."""
        self.closing = True
        if self._mode is _Mode.HEAD:
            self.transport.close()
            return
        self._deadline = self.loop.time() + self.proxy.settings.drain_timeout
        if self._control is not None and self._to_control:
            self._control.shutdown()

    def check(self, now: float) -> None:
        if not self._deadline or now < self._deadline:
            return
        self._deadline = 0.0
        if self._mode is not _Mode.HEAD:
            self.transport.abort()
        elif self._buffer:
            self._refuse(Reply(408, "The request head did not come in time"))
        else:
            self.transport.close()

    # Reading requests.

    def _pump(self, data: bytes) -> None:
        """Give the client's bytes to whom they belong."""
        self._pumping = True
        try:
            while data:
                mode = self._mode
                if mode is _Mode.HEAD:
                    data = self._take_head(data)
                elif mode is _Mode.BODY:
                    data = self._take_body(data)
                elif mode is _Mode.NEXT:
                    self._keep(data)
                    break
                elif mode is _Mode.RAW and self._exchange is not None:
                    self._exchange.send_body(data)
                    break
                elif mode is _Mode.CONTROL_RAW and self._control is not None:
                    self._control.feed(data)
                    break
                else:
                    break
        finally:
            self._pumping = False

    def _keep(self, data: bytes) -> None:
        self._buffer += data
        if len(self._buffer) > self.proxy.settings.buffer_bytes:
            self._pause(_Pause.BUFFER, True)

    def _take_head(self, data: bytes) -> bytes:
        """Begin the next request; return what follows its head."""
        buffer = self._buffer
        if buffer:
            start = max(0, len(buffer) - 3)
            buffer += data
            end = buffer.find(b"\r\n\r\n", start)
            if end < 0:
                return self._await_head()
            data = bytes(buffer)
            buffer.clear()
        else:
            end = data.find(b"\r\n\r\n")
            if end < 0:
                buffer += data
                self._deadline = self.loop.time() + self.proxy.settings.head_timeout
                return self._await_head()
        end += 4
        if end > self.proxy.settings.max_head_bytes:
            self._refuse_head()
            return b""
        self._deadline = 0.0
        raw, rest = (data, b"") if end == len(data) else (data[:end], data[end:])
        try:
            self._begin(raw.removeprefix(b"\r\n"), last=not rest)
        except MalformedHeadError as error:
            self._refuse(Reply(error.status, error.message))
        return rest

    def _await_head(self) -> bytes:
        if len(self._buffer) > self.proxy.settings.max_head_bytes:
            self._refuse_head()
        elif b"\n\n" in self._buffer:
            self._refuse(Reply(400, "The request head is not valid HTTP/1.1"))
        return b""

    def _refuse_head(self) -> None:
        self._refuse(Reply(431, "The request head is too long"))

    def _begin(self, raw: bytes, *, last: bool) -> None:
        head = parse_request(raw, max_headers=self.proxy.settings.max_headers)
        if head.method == b"CONNECT":
            raise MalformedHeadError("CONNECT is not served")
        target = find_target(head)
        self._head = head
        self._answered = False
        self.closing = self.closing or not head.keep_alive
        if head.chunked:
            self._decoder = ChunkDecoder()
            self._mode = _Mode.BODY
        else:
            self._decoder = None
            self._left = head.length or 0
            self._mode = _Mode.BODY if self._left else _Mode.NEXT
        if target is not None:
            self._begin_data(head, target, last=last)
        elif is_signed(head):
            self._begin_signed(head, last=last)
        elif is_proxy_path(head.target):
            self._answer(Reply(400, _NO_ROUTE))
        else:
            self._begin_control(head)

    def _begin_data(self, head: RequestHead, target: Target, *, last: bool) -> None:
        self._to_control = False
        exchange = self._exchange = Exchange(self, self.proxy, head, target)
        exchange.start()
        if self._eof and last and self._exchange is exchange:
            exchange.client_eof()

    def _begin_signed(self, head: RequestHead, *, last: bool) -> None:
        peer = self.transport.get_extra_info("peername")
        try:
            target = self.proxy.signatures(self.loop).find(head, str(peer[0]) if peer else "")
        except AenvError as error:
            self._answer(Reply(error.status, error.message, retry_after=error.retry_after))
        else:
            self._begin_data(head, target, last=last)

    def _begin_control(self, head: RequestHead) -> None:
        self.proxy.stats.control_requests += 1
        self._to_control = True
        if self._control is None:
            self._control = ControlChannel(
                self,
                config=self.config,
                server_state=self.server_state,
                app_state=self.app_state,
                loop=self.loop,
            )
        self._control.feed(head.raw)

    def _take_body(self, data: bytes) -> bytes:
        """Pass a piece of the request's body on; return what follows the body."""
        decoder = self._decoder
        try:
            used = self._take_chunks(data, decoder) if decoder else self._take_length(data)
        except MalformedHeadError as error:
            self._refuse(Reply(error.status, error.message))
            return b""
        if self._mode is _Mode.NEXT and self._answered:
            self._next()
        return data[used:]

    def _take_length(self, data: bytes) -> int:
        size = min(len(data), self._left)
        self._left -= size
        if not self._left:
            self._mode = _Mode.NEXT
        piece = data if size == len(data) else data[:size]
        if self._exchange is not None:
            if not self._left:
                self._exchange.end_body(None)
            self._exchange.send_body(piece)
        elif self._to_control:
            self._feed_control(piece)
        return size

    def _take_chunks(self, data: bytes, decoder: ChunkDecoder) -> int:
        payload: list[bytes] = []
        used = decoder.feed(data, payload)
        if decoder.done:
            self._mode = _Mode.NEXT
        if self._exchange is not None:
            self._exchange.send_chunk(payload)
            if decoder.done:
                self._exchange.end_body(decoder.trailers)
        elif self._to_control:
            self._feed_control(data[:used])
        return used

    def _feed_control(self, data: bytes) -> None:
        settings = self.proxy.settings
        self._deadline = self.loop.time() + settings.body_timeout if self._more_body else 0.0
        if self._control is not None:
            self._control.feed(data)

    @property
    def _more_body(self) -> bool:
        return self._mode is _Mode.BODY

    # Ending requests.

    def _finished(self) -> None:
        """The response is complete. The rest of the request, if any, is read and dropped, for a
        while."""
        self._answered = True
        if self._mode is _Mode.NEXT:
            self._next()
        elif self._mode is _Mode.BODY:
            if self.closing:
                self._linger()
            else:
                self._pause(_Pause.GUEST, False)
                self._deadline = self.loop.time() + self.proxy.settings.linger_timeout

    def _next(self) -> None:
        """Both the request and its response are complete."""
        if self.closing or (self._eof and not self._buffer):
            self._mode = _Mode.LINGER
            self.transport.close()
            return
        self._mode = _Mode.HEAD
        self._deadline = self.loop.time() + self.proxy.settings.keep_alive_timeout
        if self._pauses:
            self._pause(_Pause.BUFFER | _Pause.GUEST | _Pause.CONTROL, False)
        if self._buffer and not self._pumping:
            data = bytes(self._buffer)
            self._buffer.clear()
            self._pump(data)

    def _answer(self, reply: Reply) -> None:
        """Answer in place of whom the request was for."""
        head = self._head
        assert head is not None
        if head.expects_continue and self._more_body:
            self.closing = True
        agent = head.header(b"user-agent").lower()
        self.transport.write(
            reply.encode(
                html=b"mozilla/" in agent,
                head_only=head.method == b"HEAD",
                close=self.closing,
            )
        )
        self._finished()

    def _refuse(self, reply: Reply) -> None:
        """What came cannot be read: say so, unless a response is under way, and close."""
        self.proxy.stats.refused_malformed += 1
        self.closing = True
        self._buffer.clear()
        exchange, self._exchange = self._exchange, None
        if exchange is not None or (self._to_control and self._mode in (_Mode.BODY, _Mode.NEXT)):
            if exchange is not None:
                exchange.client_gone()
            self.transport.abort()
            return
        self.transport.write(reply.encode(html=False, head_only=False, close=True))
        self._linger()

    def _linger(self) -> None:
        """Half-close and read on for a while: closing at once with unread bytes could cost the
        client our answer."""
        self._mode = _Mode.LINGER
        self._pause(_Pause.BUFFER | _Pause.GUEST | _Pause.CONTROL, False)
        self._deadline = self.loop.time() + self.proxy.settings.linger_timeout
        if self.transport.is_closing():
            return
        if self.transport.can_write_eof():
            self.transport.write_eof()
        else:
            self.transport.close()

    def _pause(self, who: _Pause, paused: bool) -> None:
        before = self._pauses
        self._pauses = before | who if paused else before & ~who
        if bool(before) is bool(self._pauses) or self.transport.is_closing():
            return
        if self._pauses:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # The exchange's calls.

    def guest_pauses(self, paused: bool) -> None:
        self._pause(_Pause.GUEST, paused)

    def guest_upgrades(self) -> None:
        self._mode = _Mode.RAW
        self._pause(_Pause.BUFFER, False)
        if self._buffer and self._exchange is not None:
            self._exchange.send_body(bytes(self._buffer))
            self._buffer.clear()

    def guest_half_closes(self) -> None:
        self._guest_eof = True
        if self._eof or not self.transport.can_write_eof():
            self.transport.close()
        else:
            self._deadline = self.loop.time() + self.proxy.settings.keep_alive_timeout
            self.transport.write_eof()

    def guest_finished(self, *, close: bool) -> None:
        self._exchange = None
        self.closing = self.closing or close
        self._finished()

    def guest_fails(self, reply: Reply) -> None:
        self._exchange = None
        self._answer(reply)

    def guest_hangs_up(self, *, reset: bool) -> None:
        self._exchange = None
        if reset:
            sock = self.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.transport.abort()

    # The control plane's calls.

    def control_finished(self) -> None:
        if self._mode is not _Mode.LINGER and not self.transport.is_closing():
            self._finished()

    def control_closes(self) -> None:
        self.closing = True
        if self._mode is _Mode.BODY:
            self._linger()
        elif self._mode is not _Mode.LINGER:
            self.transport.close()

    def control_takes_over(self) -> None:
        self._mode = _Mode.CONTROL_RAW

    def control_pauses(self, paused: bool) -> None:
        self._pause(_Pause.CONTROL, paused)

    def is_closing(self) -> bool:
        return self._mode is _Mode.LINGER or self.transport.is_closing()


def make_protocol(
    table: RouteTable,
    settings: ProxySettings | None = None,
    *,
    resolve: Resolve | None = None,
    is_credential: IsCredential = lambda _: False,
) -> type[ProxyProtocol]:
    """The class for ``uvicorn.Config(http=…)``; its ``proxy`` holds gate, counters and pools.

    ``resolve`` finds (or resumes) sandboxes that have no route; ``is_credential`` tells whether a
    bearer token is one of this server's. Use one class for all listeners of a server.
    """
    proxy = Proxy(table, settings or ProxySettings(), resolve=resolve, is_credential=is_credential)
    return type("ServerProtocol", (ProxyProtocol,), {"proxy": proxy})


_NO_ROUTE = (
    "Name the sandbox: send E2b-Sandbox-Id (and E2b-Sandbox-Port), "
    "or x-agentenv-sandbox-id and x-agentenv-target-port"
)
