"""The sandbox service: what callers may do with sandboxes, whoever runs them.

A sandbox whose time has passed is gone for callers at once, even before the reaper comes by.
Changes are read, decided and written back fenced by version; a caller who loses a race looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from aenv.control import listing, networks, requests
from aenv.control.clocks import SECOND
from aenv.control.creation import Creation, Services
from aenv.control.deadlines import deadline
from aenv.control.endings import ATTEMPTS
from aenv.control.keys import Caller
from aenv.control.listing import Listing, ListRequest
from aenv.control.networks import NetworkRequest
from aenv.control.requests import CreateRequest
from aenv.control.states import StaleError, transition
from aenv.models.errors import AenvError, ConflictError, NotFoundError, SandboxNotFoundError
from aenv.models.ids import is_sandbox_id
from aenv.models.sandboxes import EndKind, SandboxState
from aenv.store import sandboxes as rows
from aenv.store.records import SandboxRecord as SandboxRecord

MAX_REFRESH = 3600
NETWORK_TIMEOUT = 30.0
VISIBLE = (
    SandboxState.RUNNING,
    SandboxState.PAUSING,
    SandboxState.PAUSED,
    SandboxState.RESUMING,
)
"""States that callers see, as running or paused."""

Change = Callable[[SandboxRecord], dict[str, Any]]


class Sandboxes:
    """``deadline`` is told of every new deadline, so that the reaper is there in time."""

    def __init__(
        self, services: Services, creation: Creation, deadline: Callable[[int], None]
    ) -> None:
        self._s = services
        self._creation = creation
        self._deadline = deadline
        self._network_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, caller: Caller, request: CreateRequest) -> SandboxRecord:
        record = await self._creation.create(caller, request)
        self._deadline(record.end_at)
        return record

    async def get(self, caller: Caller, sandbox_id: str) -> SandboxRecord:
        """A living sandbox of the caller's team; SandboxNotFoundError for everything else."""
        record = await self._read(sandbox_id)
        if record is None or record.team != caller.team or not self._lives(record):
            raise _not_found(sandbox_id)
        return record

    async def find(self, caller: Caller, sandbox_id: str) -> SandboxRecord:
        """As :meth:`get`, and sandboxes that ended but are not forgotten yet."""
        record = await self._read(sandbox_id)
        if record is None or record.team != caller.team:
            raise _not_found(sandbox_id)
        return record

    async def page(self, caller: Caller, request: ListRequest) -> Listing:
        template = None
        if request.template:
            try:
                template = self._s.templates.name_of(request.template, [])
            except NotFoundError:
                template = request.template
        now = self._s.clock.wall()
        wanted = listing.page(request, team=caller.team, template=template, now=now)
        running = listing.page(
            ListRequest(("running",), request.labels, started_after=request.started_after),
            team=caller.team,
            template=template,
            now=now,
        )
        found, total = await self._s.catalog.read(
            lambda db: (rows.page(db, wanted), rows.count(db, running))
        )
        limit = request.limit if request.limit is not None else len(found)
        token = None
        if len(found) > limit:
            found = found[:limit]
            token = listing.token_after(found[-1], ascending=request.ascending)
        return Listing(found, token, total)

    async def kill(self, caller: Caller, sandbox_id: str) -> None:
        """End it, also while it is being made. SandboxNotFoundError for all callers but one."""
        if not is_sandbox_id(sandbox_id):
            raise _not_found(sandbox_id)
        await self._s.endings.end(sandbox_id, EndKind.KILLED, "killed by request", team=caller.team)

    async def kill_all(self) -> tuple[int, list[str]]:
        """End every sandbox of the server; how many were, and the ids that could not be ended."""
        states = (SandboxState.CREATING, *VISIBLE)
        living = await self._s.catalog.read(lambda db: rows.in_states(db, states))
        gate = asyncio.Semaphore(8)

        async def kill(sandbox_id: str) -> str | None:
            async with gate:
                try:
                    await self._s.endings.end(sandbox_id, EndKind.KILLED, "server shut down")
                except SandboxNotFoundError:
                    return None
                except AenvError:
                    return sandbox_id
                return None

        failed = [lost for lost in await asyncio.gather(*(kill(r.id) for r in living)) if lost]
        return len(living) - len(failed), failed

    async def set_timeout(self, caller: Caller, sandbox_id: str, seconds: int) -> None:
        """End ``seconds`` from now, sooner or later than before; 0 ends it at once."""
        requests.check_timeout(seconds, "timeout")
        if seconds == 0:
            await self.get(caller, sandbox_id)
            await self._s.endings.end(
                sandbox_id, EndKind.EXPIRED, "its timeout was set to 0", team=caller.team
            )
            return
        end = self._s.clock.wall() + seconds * SECOND
        await self._change(caller, sandbox_id, lambda _: {"end_at": end})
        self._deadline(end)

    async def extend(self, caller: Caller, sandbox_id: str, seconds: int) -> SandboxRecord:
        """Live at least ``seconds`` from now; never shortens."""
        requests.check_timeout(seconds, "timeout")
        end = self._s.clock.wall() + seconds * SECOND
        return await self._change(
            caller, sandbox_id, lambda record: {"end_at": max(record.end_at, end)}
        )

    async def set_network(self, caller: Caller, sandbox_id: str, request: NetworkRequest) -> None:
        """Replace the egress rules; what decides over incoming traffic stays as created."""
        asked = networks.policy(request)
        lock = self._network_locks.setdefault(sandbox_id, asyncio.Lock())
        async with lock:
            record = await self.get(caller, sandbox_id)
            kept = networks.from_json(record.network)
            rules = networks.with_ingress_of(asked, kept)
            async with deadline(NETWORK_TIMEOUT, "changing the network rules"):
                await self._s.node.set_network(sandbox_id, rules)
            await self._change(caller, sandbox_id, lambda _: {"network": networks.to_json(rules)})

    async def _change(self, caller: Caller, sandbox_id: str, change: Change) -> SandboxRecord:
        for _ in range(ATTEMPTS):
            record = await self.get(caller, sandbox_id)
            try:
                return await self._amend(record, change(record))
            except StaleError:
                continue
        raise ConflictError(f"sandbox {sandbox_id} is being changed by others; try again")

    async def _amend(self, record: SandboxRecord, changes: dict[str, Any]) -> SandboxRecord:
        return await self._s.catalog.write(
            lambda db: transition(db, record, record.state, **changes)
        )

    async def _read(self, sandbox_id: str) -> SandboxRecord | None:
        if not is_sandbox_id(sandbox_id):
            return None
        return await self._s.catalog.read(lambda db: rows.get(db, sandbox_id))

    def _lives(self, record: SandboxRecord) -> bool:
        return record.state in VISIBLE and record.end_at > self._s.clock.wall()


def _not_found(sandbox_id: str) -> SandboxNotFoundError:
    return SandboxNotFoundError(f"sandbox {sandbox_id[:64]!r} was not found")
