"""One data-plane request and its response: from the client to a guest and back, spliced.

The client connection calls the methods about the request, the guest connection those about the
response; only a route or a fresh connection is waited for. An exchange ends in exactly one
of four ways: the response is complete, the proxy answers instead (nothing of a final response was
sent yet), the client is cut off (something was), or the client went away.
"""

from __future__ import annotations

import asyncio
import logging

from aenv.control.routes import Route
from aenv.server.proxy import replies
from aenv.server.proxy.bodies import encode_chunk, encode_end
from aenv.server.proxy.clients import Client
from aenv.server.proxy.core import Proxy
from aenv.server.proxy.heads import MalformedHeadError, RequestHead
from aenv.server.proxy.names import TRAFFIC_TOKEN
from aenv.server.proxy.replies import Reply
from aenv.server.proxy.responses import DONE, HEAD, RAW, Response
from aenv.server.proxy.rewriting import guest_head
from aenv.server.proxy.routing import Target
from aenv.server.proxy.upstream import GuestAddress, Traffic, Upstream

log = logging.getLogger(__name__)

_IDEMPOTENT = frozenset({b"GET", b"HEAD", b"OPTIONS", b"TRACE", b"PUT", b"DELETE"})


class Exchange:
    __slots__ = (
        "_address", "_client", "_eof", "_head", "_outgoing", "_proxy",
        "_request_done", "_response", "_retried", "_target", "_task", "_traffic",
        "_unsent", "_upstream", "ended",
    )  # fmt: skip

    def __init__(self, client: Client, proxy: Proxy, head: RequestHead, target: Target) -> None:
        self._client = client
        self._proxy = proxy
        self._head = head
        self._target = target
        self._address: GuestAddress = ("", 0)
        self._eof = False
        self._outgoing = b""
        self._request_done = not head.has_body
        self._response: Response | None = None
        self._retried = False
        self._task: asyncio.Task[None] | None = None
        self._traffic: Traffic | None = None
        self._unsent: list[bytes] = []
        self._upstream: Upstream | None = None
        self.ended = False

    def start(self) -> None:
        proxy, sandbox_id = self._proxy, self._target.sandbox_id
        proxy.stats.data_requests += 1
        proxy.stats.requests_active += 1
        route = proxy.table.get(sandbox_id)
        if route is not None and sandbox_id not in proxy.gate:
            self._use(route)
        else:
            self._task = self._client.loop.create_task(self._locate())

    async def _locate(self) -> None:
        found = await self._proxy.locate(self._target, self._head)
        self._task = None
        if isinstance(found, Reply):
            self._fail(found)
        else:
            self._use(found)

    def _use(self, route: Route) -> None:
        proxy, head, target = self._proxy, self._head, self._target
        refusal = proxy.admit(route, target, head.unique.get(TRAFFIC_TOKEN))
        if refusal is not None:
            self._fail(refusal)
            return
        self._traffic = traffic = proxy.traffic(target.sandbox_id)
        traffic.exchanges.add(self)
        self._address = route.address(target.port)
        # A raw splice to the agent (h2c, say) would go around the paths that are refused there.
        upgrade = head.upgrade is not None and not head.has_body and self._address != route.agent
        self._outgoing = guest_head(
            head,
            target,
            upgrade=upgrade,
            mask_host=route.mask_request_host,
            access_token_ports=proxy.settings.access_token_ports,
            is_credential=proxy.is_credential,
        )
        self._response = Response(
            head,
            self._client.transport,
            proxy.stats,
            max_head=proxy.settings.max_head_bytes,
            upgrade=upgrade,
            close=not head.keep_alive,
        )
        upstream = traffic.take(target.port, self._address)
        if upstream is None:
            self._task = self._client.loop.create_task(self._dial())
        else:
            proxy.stats.upstream_reuses += 1
            self._attach(upstream)

    async def _dial(self) -> None:
        found = await self._proxy.open(self._target, self._address, self._client.loop)
        if isinstance(found, Reply):
            self._fail(found)
        else:
            self._task = None
            self._attach(found)

    def _attach(self, upstream: Upstream) -> None:
        transport = upstream.transport
        if transport.is_closing():
            self._break("it closed the connection at once")
            return
        self._upstream = upstream
        upstream.exchange = self
        transport.write(self._outgoing)
        if self._unsent:
            self._client.guest_pauses(False)
            transport.writelines(self._unsent)
            self._unsent = []
        if self._eof:
            transport.write_eof()
        if self._client.write_paused:
            transport.pause_reading()

    # The request, from the client.

    def send_body(self, data: bytes) -> None:
        """A piece of a body that has a length, or raw bytes after an upgrade."""
        self._proxy.stats.bytes_to_guests += len(data)
        if self._upstream is not None:
            self._upstream.transport.write(data)
        else:
            self._unsent.append(data)
            if sum(map(len, self._unsent)) > self._proxy.settings.buffer_bytes:
                self._client.guest_pauses(True)

    def send_chunk(self, payload: list[bytes]) -> None:
        for piece in encode_chunk(payload):
            self.send_body(piece)

    def end_body(self, trailers: bytes | None) -> None:
        """The request is complete; ``trailers`` is None for a body that has a length."""
        if trailers is not None:
            self.send_body(encode_end(trailers))
        self._request_done = True

    def client_eof(self) -> None:
        """The client will send no more: the guest learns it at once, and decides what that
        means."""
        self._eof = True
        if self._upstream is not None and not self._upstream.transport.is_closing():
            self._upstream.transport.write_eof()

    def client_gone(self) -> None:
        if not self.ended:
            self._proxy.stats.client_disconnects += 1
            self._end(keep=False)

    def client_paused(self, paused: bool) -> None:
        if self._upstream is None or self._upstream.transport.is_closing():
            return
        if paused:
            self._upstream.transport.pause_reading()
        else:
            self._upstream.transport.resume_reading()

    def withdraw(self) -> None:
        """The sandbox is gone or paused: what it has not seen yet may still be served."""
        if self.started:
            self._cut()
        elif self._upstream is None and self._task is not None:
            self._task.cancel()
            self._traffic = None
            self._task = self._client.loop.create_task(self._locate())
        else:
            self._proxy.stats.refused_not_found += 1
            self._fail(replies.not_found(self._target, paused=False))

    # The response, from the guest.

    @property
    def started(self) -> bool:
        """Whether the client got the head of the guest's final answer."""
        return self._response is not None and self._response.phase is not HEAD

    def guest_paused(self, paused: bool) -> None:
        self._client.guest_pauses(paused)

    def guest_data(self, data: bytes) -> None:
        response = self._response
        assert response is not None
        phase = response.phase
        if phase is HEAD:
            response.close |= self._client.closing
            response.close |= self._head.expects_continue and not self._request_done
        try:
            response.feed(data)
        except MalformedHeadError as error:
            self._break(error.message)
            return
        if response.phase is DONE:
            self._finish(response)
        elif phase is HEAD and response.phase is RAW:
            self._proxy.stats.upgrades += 1
            self._client.guest_upgrades()

    def guest_eof(self) -> bool:
        """The guest will send no more; only a raw splice may go on the other way."""
        if self._response is not None and self._response.phase is RAW:
            self._client.guest_half_closes()
            return not self.ended
        self.guest_lost(None)
        return False

    def guest_lost(self, exc: Exception | None) -> None:
        response = self._response
        assert response is not None
        if exc is None and response.end():
            self._finish(response)
        elif response.untouched and self._may_repeat():
            self._retried = True
            self._proxy.stats.upstream_retries += 1
            self._release(keep=False)
            self._task = self._client.loop.create_task(self._dial())
        else:
            self._break("it closed the connection")

    def _may_repeat(self) -> bool:
        """A guest may close an idle connection just as we use it: what is harmless to repeat is
        sent again, once."""
        reused = self._upstream is not None and self._upstream.reused
        harmless = self._head.method in _IDEMPOTENT and not self._head.has_body
        return reused and harmless and not self._retried

    # The ends.

    def _finish(self, response: Response) -> None:
        whole = self._request_done and not self._eof and not response.leftover
        self._end(keep=response.keep_alive and whole)
        self._client.guest_finished(close=response.close)

    def _fail(self, reply: Reply) -> None:
        self._end(keep=False)
        self._client.guest_fails(reply)

    def _break(self, why: str) -> None:
        """The guest's answer cannot be used, or not be completed."""
        self._proxy.stats.upstream_errors += 1
        log.debug("Sandbox %s broke off its answer: %s", self._target.sandbox_id, why)
        if self.started:
            self._cut()
        else:
            self._fail(replies.broken_answer(self._target))

    def _cut(self) -> None:
        """The client must see that the response is not whole."""
        self._proxy.stats.aborted += 1
        reset = self._response is not None and self._response.needs_reset
        self._end(keep=False)
        self._client.guest_hangs_up(reset=reset)

    def _end(self, *, keep: bool) -> None:
        self.ended = True
        self._proxy.stats.requests_active -= 1
        if self._traffic is not None:
            self._traffic.exchanges.discard(self)
        task, self._task = self._task, None
        if task is not None and task is not asyncio.current_task():
            task.cancel()
        self._release(keep=keep)

    def _release(self, *, keep: bool) -> None:
        upstream, self._upstream = self._upstream, None
        if upstream is None:
            return
        if not keep or self._traffic is None or upstream.transport.is_closing():
            upstream.abort()
            return
        if self._client.write_paused:
            upstream.transport.resume_reading()
        self._traffic.put(
            self._target.port,
            upstream,
            self._client.loop.time(),
            limit=self._proxy.settings.upstream_idle_per_port,
        )
