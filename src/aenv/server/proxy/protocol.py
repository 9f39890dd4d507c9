"""The HTTP protocol class of our server: requests on one connection go to a sandbox or to control.

See ``requests`` for how they are read, ``exchange`` for the way to a sandbox and ``control`` for
the one to the ASGI application.
"""

from __future__ import annotations

from typing import Any

from aenv.control.routes import RouteTable
from aenv.models.errors import AenvError
from aenv.server.proxy.bodies import ChunkDecoder
from aenv.server.proxy.connections import BODY, CONTROL_RAW, HEAD, LINGER, NEXT, RAW, Pause
from aenv.server.proxy.control import ControlChannel
from aenv.server.proxy.core import Proxy, Resolve
from aenv.server.proxy.exchange import Exchange
from aenv.server.proxy.heads import MalformedHeadError, RequestHead
from aenv.server.proxy.replies import Reply
from aenv.server.proxy.requests import RequestReader
from aenv.server.proxy.rewriting import IsCredential
from aenv.server.proxy.routing import Target, find_target, is_proxy_path
from aenv.server.proxy.settings import ProxySettings
from aenv.server.proxy.signatures import is_signed

_NO_ROUTE = (
    "Name the sandbox: send E2b-Sandbox-Id (and E2b-Sandbox-Port), "
    "or x-agentenv-sandbox-id and x-agentenv-target-port"
)


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


class ProxyProtocol(RequestReader):
    """One client connection of the server."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._head: RequestHead | None = None
        self._exchange: Exchange | None = None
        self._control: ControlChannel | None = None
        self._to_control = False
        self._guest_eof = False

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        if self._exchange is not None:
            self._exchange.client_gone()
            self._exchange = None
        if self._control is not None:
            self._control.lost(exc)
            self._control = None

    def eof_received(self) -> bool:
        """The client may still read: the guest is told, and has a while to answer."""
        if self._mode is CONTROL_RAW and self._control is not None:
            return self._control.eof()
        if self._exchange is None or not self.transport.can_write_eof():
            return False
        if self._mode is BODY or self._guest_eof:
            return False
        self._eof = True
        settings = self.proxy.settings
        raw = self._mode is RAW
        self._set_deadline(settings.keep_alive_timeout if raw else settings.half_close_timeout)
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

    def shutdown(self) -> None:
        """Called by uvicorn: finish the request under way, within the drain time, and close."""
        self.closing = True
        if self._mode is HEAD:
            self.transport.close()
            return
        self._set_deadline(self.proxy.settings.drain_timeout)
        if self._control is not None and self._to_control:
            self._control.shutdown()

    # Requests.

    def _begin(self, head: RequestHead, *, last: bool) -> None:
        if head.method == b"CONNECT":
            raise MalformedHeadError("CONNECT is not served")
        target = find_target(head)
        self._head = head
        self._to_control = False
        if target is not None:
            self._begin_data(head, target, last=last)
        elif is_signed(head):
            self._begin_signed(head, last=last)
        elif is_proxy_path(head.target):
            self._answer(Reply(400, _NO_ROUTE))
        else:
            self._begin_control(head)

    def _begin_data(self, head: RequestHead, target: Target, *, last: bool) -> None:
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

    def _pass_body(self, data: bytes, *, done: bool) -> None:
        exchange = self._exchange
        if exchange is not None:
            exchange.send_body(data)
            if done:
                exchange.end_body(None)
        elif self._to_control:
            self._feed_control(data)

    def _pass_chunks(self, raw: bytes, payload: list[bytes], decoder: ChunkDecoder) -> None:
        exchange = self._exchange
        if exchange is not None:
            exchange.send_chunk(payload)
            if decoder.done:
                exchange.end_body(decoder.trailers)
        elif self._to_control:
            self._feed_control(raw)

    def _feed_control(self, data: bytes) -> None:
        if self._mode is BODY and not self._answered:
            self._set_deadline(self.proxy.settings.body_timeout)
        elif self._mode is NEXT:
            self._deadline = 0.0
        if self._control is not None:
            self._control.feed(data)

    def _pass_raw(self, data: bytes) -> None:
        if self._mode is RAW and self._exchange is not None:
            self._exchange.send_body(data)
        elif self._mode is CONTROL_RAW and self._control is not None:
            self._control.feed(data)

    # Answers.

    def _answer(self, reply: Reply) -> None:
        """Answer in place of whom the request was for."""
        head = self._head
        assert head is not None
        if head.expects_continue and self._mode is BODY:
            self.closing = True
        self.transport.write(
            reply.encode(
                html=b"mozilla/" in head.header(b"user-agent").lower(),
                head_only=head.method == b"HEAD",
                close=self.closing,
            )
        )
        self._finished()

    def _refuse(self, reply: Reply) -> None:
        """A request may turn out malformed while it is served already, even answered."""
        exchange, self._exchange = self._exchange, None
        control, self._control = self._control, None
        answering = False
        if exchange is not None:
            answering = exchange.started
            exchange.client_gone()
        elif control is not None:
            answering = self._mode in (BODY, NEXT) and control.answering
            control.lost(ConnectionAbortedError(reply.message))
        if answering:
            self._buffer.clear()
            self._cut(reset=False)
        else:
            super()._refuse(reply)

    # What an exchange tells its client.

    def guest_pauses(self, paused: bool) -> None:
        self._pause(Pause.GUEST, paused)

    def guest_upgrades(self) -> None:
        self._mode = RAW
        self._pause(Pause.BUFFER, False)
        if self._buffer and self._exchange is not None:
            self._exchange.send_body(bytes(self._buffer))
            self._buffer.clear()

    def guest_half_closes(self) -> None:
        self._guest_eof = True
        if self._eof or not self.transport.can_write_eof():
            self.transport.close()
        else:
            self._set_deadline(self.proxy.settings.keep_alive_timeout)
            self.transport.write_eof()

    def guest_finished(self, *, close: bool) -> None:
        self._exchange = None
        if close:
            self.closing = True
        self._finished()

    def guest_fails(self, reply: Reply) -> None:
        self._exchange = None
        self._answer(reply)

    def guest_hangs_up(self, *, reset: bool) -> None:
        self._exchange = None
        self._cut(reset=reset)

    # What the control plane tells its client.

    def control_finished(self) -> None:
        if not self.is_closing():
            self._finished()

    def control_closes(self) -> None:
        self.closing = True
        if self._mode is BODY:
            self._linger()
        elif self._mode is not LINGER:
            self.transport.close()

    def control_takes_over(self) -> None:
        self._mode = CONTROL_RAW

    def control_pauses(self, paused: bool) -> None:
        self._pause(Pause.CONTROL, paused)
