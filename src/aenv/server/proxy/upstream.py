"""Connections to guests. Each is for one port of one sandbox only, for one exchange at a time, and
pooled between."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from aenv.server.proxy.exchange import Exchange

GuestAddress = tuple[str, int]


class Upstream(asyncio.Protocol):
    """One connection to a guest port. A guest that speaks unasked is hung up on."""

    __slots__ = ("address", "exchange", "idle_since", "reused", "transport")

    transport: asyncio.Transport

    def __init__(self, address: GuestAddress) -> None:
        self.address = address
        self.exchange: Exchange | None = None
        self.idle_since = 0.0
        self.reused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self.exchange is None:
            self.transport.abort()
        else:
            self.exchange.guest_data(data)

    def eof_received(self) -> bool:
        return self.exchange is not None and self.exchange.guest_eof()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.exchange is not None:
            self.exchange.guest_lost(exc)

    def pause_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.guest_paused(True)

    def resume_writing(self) -> None:
        if self.exchange is not None:
            self.exchange.guest_paused(False)

    def abort(self) -> None:
        self.exchange = None
        transport = getattr(self, "transport", None)
        if transport is not None:
            transport.abort()


async def dial(
    address: GuestAddress, loop: asyncio.AbstractEventLoop, *, timeout: float
) -> Upstream:
    """A fresh connection. Raises TimeoutError when the guest does not accept, and OSError."""
    upstream = Upstream(address)
    try:
        async with asyncio.timeout(timeout):
            await loop.create_connection(lambda: upstream, *address)
    except BaseException:
        upstream.abort()
        raise
    return upstream


class Traffic:
    """What goes on with one sandbox: its exchanges, and its idle connections by port, latest used
    last."""

    __slots__ = ("exchanges", "idle")

    def __init__(self) -> None:
        self.exchanges: set[Exchange] = set()
        self.idle: dict[int, deque[Upstream]] = {}

    def take(self, port: int, address: GuestAddress) -> Upstream | None:
        """An idle connection to ``address``; those to a former address of the sandbox are
        closed."""
        pool = self.idle.get(port)
        while pool:
            upstream = pool.pop()
            if upstream.address == address and not upstream.transport.is_closing():
                upstream.reused = True
                return upstream
            upstream.abort()
        return None

    def put(self, port: int, upstream: Upstream, now: float, *, limit: int) -> None:
        upstream.exchange = None
        pool = self.idle.setdefault(port, deque())
        if len(pool) >= limit:
            pool.popleft().abort()
        upstream.idle_since = now
        pool.append(upstream)

    def expire(self, before: float) -> None:
        """Close connections idle since ``before`` or closed by the guest, and forget ports without
        any."""
        for port, pool in list(self.idle.items()):
            kept = deque(
                upstream
                for upstream in pool
                if upstream.idle_since >= before and not upstream.transport.is_closing()
            )
            for upstream in pool:
                if upstream not in kept:
                    upstream.abort()
            if kept:
                self.idle[port] = kept
            else:
                del self.idle[port]

    @property
    def empty(self) -> bool:
        return not self.exchanges and not self.idle

    def withdraw(self) -> None:
        """The sandbox is gone: nothing of it may go on."""
        for pool in self.idle.values():
            for upstream in pool:
                upstream.abort()
        self.idle.clear()
        for exchange in list(self.exchanges):
            exchange.withdraw()
        self.exchanges.clear()
