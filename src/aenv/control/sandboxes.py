"""The sandbox service: what callers may do with sandboxes, whoever runs them.

Changes are read, decided and written back fenced by version; a caller who loses a race looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from weakref import WeakValueDictionary

from aenv.control import listing, lookups, networks, requests
from aenv.control.clocks import SECOND
from aenv.control.creation import Creation
from aenv.control.deadlines import deadline
from aenv.control.endings import ATTEMPTS
from aenv.control.keys import Caller
from aenv.control.listing import Listing, ListRequest
from aenv.control.networks import NetworkRequest
from aenv.control.pauses import Pauses, Wish
from aenv.control.requests import CreateRequest
from aenv.control.resumes import Call, Resumes, Unwoken
from aenv.control.routes import Route
from aenv.control.services import Services
from aenv.control.states import StaleError, transition
from aenv.control.visitors import Visitor
from aenv.models.errors import AenvError, ConflictError, NotFoundError, SandboxNotFoundError
from aenv.models.ids import is_sandbox_id
from aenv.models.sandboxes import EndKind, SandboxState
from aenv.store import builds
from aenv.store import sandboxes as rows
from aenv.store.records import SandboxRecord as SandboxRecord

MAX_REFRESH = 3600
NETWORK_TIMEOUT = 30.0
Change = Callable[[SandboxRecord], dict[str, Any]]


class Sandboxes:
    def __init__(
        self, services: Services, creation: Creation, pauses: Pauses, resumes: Resumes
    ) -> None:
        self._s = services
        self._creation = creation
        self._pauses = pauses
        self._resumes = resumes
        self._network_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def create(self, caller: Caller, request: CreateRequest) -> SandboxRecord:
        return await self._creation.create(caller, request)

    async def get(self, caller: Caller, sandbox_id: str) -> SandboxRecord:
        """A living sandbox of the caller's team; SandboxNotFoundError for everything else."""
        return await lookups.living(self._s.catalog, self._s.clock, caller.team, sandbox_id)

    async def find(self, caller: Caller, sandbox_id: str) -> SandboxRecord:
        """As :meth:`get`, and sandboxes that ended but are not forgotten yet."""
        record = await lookups.read(self._s.catalog, sandbox_id)
        if record is None or record.team != caller.team:
            raise lookups.not_found(sandbox_id)
        return record

    async def _template(self, team: str, reference: str) -> str:
        """What sandboxes of a template are filtered by: the id of one that was built."""
        built = await self._s.catalog.read(lambda db: builds.template_named(db, team, reference))
        if built is not None:
            return built.id
        try:
            return self._s.templates.name_of(reference, [])
        except NotFoundError:
            return reference

    async def page(self, caller: Caller, request: ListRequest) -> Listing:
        template = None
        if request.template:
            template = await self._template(caller.team, request.template)
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
        """End it, also while it is being made or paused. SandboxNotFoundError for all callers but
        one.
        """
        if not is_sandbox_id(sandbox_id):
            raise lookups.not_found(sandbox_id)
        await self._s.endings.end(sandbox_id, EndKind.KILLED, "killed by request", team=caller.team)

    async def kill_all(self) -> tuple[int, list[str]]:
        """End every sandbox of the server; how many were, and the ids that could not be ended."""
        states = (SandboxState.CREATING, *lookups.VISIBLE)
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
        """End (or pause, if it was made so) ``seconds`` from now, sooner or later than before; 0
        does it at once.
        """
        requests.check_timeout(seconds, "timeout")
        end = self._s.clock.wall() + seconds * SECOND
        if seconds:
            await self._change(caller, sandbox_id, lambda _: {"end_at": end, "timeout": seconds})
            self._s.deadline(end)
            return
        record = await self._running(caller, sandbox_id)
        if record.auto_pause:
            record = await self._change(caller, sandbox_id, lambda _: {"end_at": end})
            await self._pauses.expire(record)
        else:
            await self._s.endings.end(
                sandbox_id, EndKind.EXPIRED, "its timeout was set to 0", team=caller.team
            )

    async def extend(self, caller: Caller, sandbox_id: str, seconds: int) -> SandboxRecord:
        """Live at least ``seconds`` from now; never shortens."""
        requests.check_timeout(seconds, "timeout")
        end = self._s.clock.wall() + seconds * SECOND
        return await self._change(
            caller, sandbox_id, lambda record: {"end_at": max(record.end_at, end)}
        )

    async def pause(
        self, caller: Caller, sandbox_id: str, *, memory: bool = True, healthy: bool = False
    ) -> None:
        """See :meth:`Pauses.pause`."""
        await self._pauses.pause(caller.team, sandbox_id, Wish(memory, healthy))

    async def connect(
        self, caller: Caller, sandbox_id: str, call: Call
    ) -> tuple[SandboxRecord, bool]:
        """See :meth:`Resumes.connect`."""
        return await self._resumes.connect(caller.team, sandbox_id, call)

    async def resume(self, caller: Caller, sandbox_id: str, call: Call) -> SandboxRecord:
        """See :meth:`Resumes.resume`."""
        return await self._resumes.resume(caller.team, sandbox_id, call)

    async def wake(self, sandbox_id: str, visitor: Visitor) -> Route | Unwoken | None:
        """See :meth:`Resumes.wake`."""
        return await self._resumes.wake(sandbox_id, visitor)

    async def expire(self, record: SandboxRecord) -> None:
        """Its time has passed."""
        if record.auto_pause:
            await self._pauses.expire(record)
        else:
            await self._s.endings.expire(record)

    async def set_network(self, caller: Caller, sandbox_id: str, request: NetworkRequest) -> None:
        """Replace the egress rules; what decides over incoming traffic stays as created."""
        asked = networks.policy(request)
        lock = self._network_locks.setdefault(sandbox_id, asyncio.Lock())
        async with lock:
            record = await self._running(caller, sandbox_id)
            kept = networks.from_json(record.network)
            rules = networks.with_ingress_of(asked, kept)
            async with deadline(NETWORK_TIMEOUT, "changing the network rules"):
                await self._s.node.set_network(sandbox_id, rules)
            await self._change(caller, sandbox_id, lambda _: {"network": networks.to_json(rules)})

    async def _change(self, caller: Caller, sandbox_id: str, change: Change) -> SandboxRecord:
        for _ in range(ATTEMPTS):
            record = await self._running(caller, sandbox_id)
            try:
                return await self._amend(record, change(record))
            except StaleError:
                continue
        raise ConflictError(f"sandbox {sandbox_id} is being changed by others; try again")

    async def _running(self, caller: Caller, sandbox_id: str) -> SandboxRecord:
        """SandboxNotFoundError for a paused one too; what is under way is waited for."""
        record = await self.get(caller, sandbox_id)
        for _ in range(ATTEMPTS):
            if record.state not in (SandboxState.PAUSING, SandboxState.RESUMING):
                break
            await self._s.turns.idle(sandbox_id)
            record = await self.get(caller, sandbox_id)
        if record.state is not SandboxState.RUNNING:
            raise SandboxNotFoundError(
                f"sandbox {sandbox_id} is paused; resume it with: aenv resume {sandbox_id}"
            )
        return record

    async def _amend(self, record: SandboxRecord, changes: dict[str, Any]) -> SandboxRecord:
        return await self._s.catalog.write(
            lambda db: transition(db, record, record.state, **changes)
        )
