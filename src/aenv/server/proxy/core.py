"""The proxy of one server: what all its client connections share, and the one timer that ends what
is overdue."""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Protocol

from aenv.control.routes import Route, RouteTable
from aenv.control.visitors import Visitor
from aenv.models.errors import AenvError
from aenv.server.proxy import replies
from aenv.server.proxy.gate import Gate, GateFullError
from aenv.server.proxy.heads import RequestHead
from aenv.server.proxy.replies import Reply
from aenv.server.proxy.rewriting import IsCredential
from aenv.server.proxy.routing import Target, is_host_only
from aenv.server.proxy.settings import ProxySettings, ProxyStats
from aenv.server.proxy.signatures import SignatureProbe
from aenv.server.proxy.upstream import GuestAddress, Traffic, Upstream, dial
from aenv.server.proxy.visits import visitor

log = logging.getLogger(__name__)

SWEEP_INTERVAL = 1.0


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a sandbox cannot be reached: it is ``paused`` and does not resume on traffic, it is
    ``barred`` without a token of its own, or it is not there."""

    paused: bool = False
    barred: bool = False


Resolve = Callable[[str, Visitor], Awaitable[Route | Refusal | None]]
"""Of a sandbox's id, and what the request shows to be let in."""


class Client(Protocol):
    """A client connection as the sweep sees it."""

    def check(self, now: float) -> None:
        """End what is overdue at ``now`` (loop time)."""


class Proxy:
    """Route table, gate, pools, counters and limits. ``resolve`` is asked for sandboxes without a
    route."""

    def __init__(
        self,
        table: RouteTable,
        settings: ProxySettings,
        *,
        resolve: Resolve | None,
        is_credential: IsCredential,
    ) -> None:
        self.table = table
        self.settings = settings
        self.resolve = resolve
        self.is_credential = is_credential
        self.stats = ProxyStats()
        self.gate = Gate(max_waiting=settings.max_parked_per_sandbox, timeout=settings.park_timeout)
        self.clients: set[Client] = set()
        self._probe: SignatureProbe | None = None
        self._traffic: dict[str, Traffic] = {}
        self._timer: asyncio.TimerHandle | None = None
        table.on_withdraw(self._withdraw)

    def traffic(self, sandbox_id: str) -> Traffic:
        found = self._traffic.get(sandbox_id)
        if found is None:
            found = self._traffic[sandbox_id] = Traffic()
        return found

    def signatures(self, loop: asyncio.AbstractEventLoop) -> SignatureProbe:
        if self._probe is None:
            self._probe = SignatureProbe(self.table, self.settings, loop.time)
        return self._probe

    def admit(self, route: Route, target: Target, token: bytes | None) -> Reply | None:
        """The agent's host-only paths, and the traffic rule of guest ports (the agent checks its
        own token)."""
        if route.address(target.port) == route.agent:
            if is_host_only(target.path):
                return replies.host_only()
            return self._admit_one_more(target)
        expected = route.traffic_token
        proven = expected and token and hmac.compare_digest(expected.encode(), token)
        if not (route.allow_public_traffic or proven):
            self.stats.refused_forbidden += 1
            return replies.traffic_token_needed(target)
        return self._admit_one_more(target)

    def _admit_one_more(self, target: Target) -> Reply | None:
        limit = self.settings.max_requests_per_sandbox
        if len(self.traffic(target.sandbox_id).exchanges) < limit:
            return None
        self.stats.refused_limit += 1
        return replies.busy(target, limit)

    async def locate(self, target: Target, head: RequestHead) -> Route | Reply:
        """The slow way to a route: through a held gate, and by asking control."""
        try:
            if target.sandbox_id in self.gate:
                self.stats.parked += 1
                await self.gate.passage(target.sandbox_id)
            found = await self._resolve(target, head)
        except GateFullError:
            self.stats.refused_limit += 1
            return replies.on_hold(target)
        except TimeoutError:
            self.stats.refused_timeout += 1
            return Reply(504, "The sandbox did not resume in time", target)
        except AenvError as error:
            return Reply(error.status, error.message, target, retry_after=error.retry_after)
        except Exception:
            log.exception("Resolving failed", extra={"sandbox_id": target.sandbox_id})
            return Reply(500, "The sandbox could not be resolved", target)
        if isinstance(found, Route):
            return found
        if found is not None and found.barred:
            self.stats.refused_forbidden += 1
            return replies.barred(target)
        self.stats.refused_not_found += 1
        return replies.not_found(target, paused=found is not None and found.paused)

    async def open(
        self, target: Target, address: GuestAddress, loop: asyncio.AbstractEventLoop
    ) -> Upstream | Reply:
        """A fresh connection to a guest; not while it is frozen, when it would lose the SYN."""
        try:
            if target.sandbox_id in self.gate:
                self.stats.parked += 1
            async with self.gate.passing(target.sandbox_id):
                self.stats.upstream_connects += 1
                return await dial(address, loop, timeout=self.settings.connect_timeout)
        except GateFullError:
            self.stats.refused_limit += 1
            return replies.on_hold(target)
        except TimeoutError:
            self.stats.refused_timeout += 1
            return replies.connect_timeout(target)
        except OSError:
            self.stats.refused_port_closed += 1
            return replies.port_closed(target)

    async def _resolve(self, target: Target, head: RequestHead) -> Route | Refusal | None:
        route = self.table.get(target.sandbox_id)
        if route is not None or self.resolve is None:
            return route
        async with asyncio.timeout(self.settings.resolve_timeout):
            return await self.resolve(target.sandbox_id, visitor(target, head))

    def join(self, client: Client, loop: asyncio.AbstractEventLoop) -> None:
        self.clients.add(client)
        if self._timer is None:
            self._timer = loop.call_later(SWEEP_INTERVAL, self._sweep, loop)

    def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        now = loop.time()
        for client in list(self.clients):
            client.check(now)
        for sandbox_id, traffic in list(self._traffic.items()):
            traffic.expire(now - self.settings.upstream_idle_timeout)
            if traffic.empty:
                del self._traffic[sandbox_id]
        if self.clients or self._traffic:
            self._timer = loop.call_later(SWEEP_INTERVAL, self._sweep, loop)

    def _withdraw(self, sandbox_id: str) -> None:
        traffic = self._traffic.pop(sandbox_id, None)
        if traffic is not None:
            traffic.withdraw()

    def close(self) -> None:
        """Close idle connections to guests and stop the sweep; call it after the server has shut
        down."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for traffic in self._traffic.values():
            traffic.withdraw()
        self._traffic.clear()
