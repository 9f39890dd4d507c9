"""Warm pools: how many machines wait is what the creates of the last minutes would have used.

One task makes and ends them, one at a time, while no create is under way; a create takes one by
:meth:`Pools.claim` in an instant. Machines that wait belong to nobody: they are the first to go
when memory is short, and go with their template and with the server. Nothing here fails a create.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from aenv.models.errors import AenvError
from aenv.models.memory import MemoryShare
from aenv.models.pools import PoolReport
from aenv.models.sandboxes import Resources
from aenv.node.engines.tasks import finish
from aenv.node.machines import Waiting
from aenv.node.memos import Memos
from aenv.node.pools.demand import Demand, PoolKey
from aenv.node.pools.filling import Filling
from aenv.node.pools.shelf import Shelf
from aenv.node.port import SandboxSpec

logger = logging.getLogger(__name__)

QUIET = 0.3
"""Seconds without a create before a machine is made."""
_PATIENCE = 5.0
_REST = 30.0
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 300.0
_UNKNOWN_SIZE = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class PoolBounds:
    """Over all pools: ``most`` machines (0: no pools), ``memory`` bytes. ``idle`` in seconds."""

    most: int
    memory: int
    idle: float


class Pools:
    """``engine``: that of creates that name none. ``busy``: whether a create is under way."""

    def __init__(
        self,
        bounds: PoolBounds,
        engine: str,
        filling: Filling,
        memos: Memos,
        busy: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bounds = bounds
        self._engine = engine
        self._filling = filling
        self._bakes = filling.bakes
        self._shelf = Shelf(memos, self._lost)
        self._busy = busy
        self._clock = clock
        self._demand = Demand(bounds.idle, clock)
        self._wake = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None
        self._step: tuple[PoolKey, asyncio.Task[None]] | None = None
        self._resting: dict[PoolKey, tuple[float, float]] = {}
        self._rest_until = float("-inf")

    async def close(self) -> None:
        """End every machine that waits."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        await self._shelf.discard_all()

    def claim(
        self, template: str, resources: Resources, *, snapshot: str | None, engine: str | None
    ) -> str | None:
        """The id of a machine that waits, now the caller's to make a sandbox of."""
        if self._bounds.most <= 0 and not self._bakes.enabled:
            return None
        key = PoolKey(template, resources, engine or self._engine, snapshot)
        self._demand.note(key)
        claimed = self._shelf.claim(key)
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name="warm-pools")
        self._wake.set()
        return claimed

    def unclaim(self, sandbox_id: str) -> None:
        self._shelf.unclaim(sandbox_id)

    @asynccontextmanager
    async def taken(self, spec: SandboxSpec) -> AsyncIterator[Waiting | None]:
        """The machine that was claimed for ``spec``; destroyed afterwards unless it was used."""
        pooled = self._shelf.take(spec.sandbox_id)
        if pooled is None:
            yield None
            return
        key = PoolKey(spec.template, spec.resources, spec.engine or self._engine, spec.snapshot)
        if pooled.key != key:
            await self._shelf.discard([pooled])
            yield None
            return
        try:
            yield pooled.waiting
        finally:
            used = pooled.waiting.taken
            (self._shelf.hits if used else self._shelf.misses)[key.template] += 1
            if not used:
                await finish(self._shelf.discard([pooled]))

    async def abandon(self, sandbox_id: str) -> None:
        """End what was claimed under this id, if nothing was made of it."""
        if (pooled := self._shelf.take(sandbox_id)) is not None:
            await self._shelf.discard([pooled])

    async def relieve(self) -> bool:
        """Give back the memory of one machine, and make none for a while. False if none waits."""
        self._rest_until = self._clock() + _REST
        wanted = self._demand.kinds()
        keys = sorted(self._shelf.kinds(), key=lambda key: _place(wanted, key))
        if not keys:
            return False
        await self._shelf.discard_one(keys[-1])
        return True

    async def drain(self, *, template: str | None = None, snapshot: str | None = None) -> None:
        """The template or snapshot is about to go: so do its machines and memory images."""

        def doomed(key: PoolKey) -> bool:
            return key.template == template or (snapshot is not None and key.snapshot == snapshot)

        for key in filter(doomed, self._demand.kinds()):
            self._demand.forget(key)
        if self._step is not None and doomed(self._step[0]):
            self._step[1].cancel()
            await asyncio.wait({self._step[1]})
        await self._shelf.discard_where(doomed)
        await self._bakes.drop_of(template=template, snapshot=snapshot)

    async def share(self) -> MemoryShare:
        """What the machines that wait hold of the host's memory, measured now."""
        return await self._shelf.share()

    def report(self) -> PoolReport:
        return PoolReport(
            shares=self._shelf.shares(self._targets()),
            images=len(self._bakes.store.all()),
            image_bytes=self._bakes.bytes(),
        )

    async def _keep(self) -> None:
        while True:
            self._wake.clear()
            try:
                key = await self._shrunk()
                if key is None:
                    await self._woken(self._until_change())
                elif await self._is_quiet():
                    await self._run(key)
            except Exception:  # the pools are an accelerator: they must outlive their own faults
                logger.exception("the warm pools stumbled")
                await asyncio.sleep(_FIRST_PAUSE)

    async def _shrunk(self) -> PoolKey | None:
        """End surplus machines; the kind that lacks one."""
        targets = self._targets()
        for key in self._shelf.kinds():
            while self._shelf.count(key) > targets.get(key, 0):
                await self._shelf.discard_one(key)
        now = self._clock()
        for key in self._demand.kinds():
            resting = now < self._resting.get(key, (0.0, 0.0))[0]
            lacks = self._shelf.count(key) < targets.get(key, 0)
            if not resting and now >= self._rest_until and (lacks or not self._bounds.most):
                return key
        return None

    def _targets(self) -> dict[PoolKey, int]:
        """What each kind may have: those asked for last first, within the bounds."""
        machines, memory = self._bounds.most, self._bounds.memory
        targets: dict[PoolKey, int] = {}
        for key in self._demand.kinds():
            size = max(1, self._shelf.size(key, _UNKNOWN_SIZE))
            number = min(self._demand.wanted(key), machines, max(0, memory) // size)
            targets[key] = number
            machines -= number
            memory -= number * size
        return targets

    async def _run(self, key: PoolKey) -> None:
        """One step for ``key`` in a task of its own, which :meth:`drain` may end."""
        task = asyncio.create_task(self._fill(key), name=f"fill-{key.template}")
        self._step = key, task
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait({task})
            raise
        finally:
            self._step = None
        if not task.cancelled():
            task.result()

    async def _fill(self, key: PoolKey) -> None:
        try:
            if not await self._filling.possible(key):
                self._rest(key)
                return
            if await self._filling.bake(key):
                return
            if self._bounds.most <= 0:
                self._demand.forget(key)
                return
            self._shelf.add(await self._filling.make(key))
            self._resting.pop(key, None)
        except AenvError as error:
            logger.info("no machine of template %s was made ahead: %s", key.template, error)
            self._rest(key)

    def _lost(self, key: PoolKey) -> None:
        """A machine of this kind died while it waited."""
        self._rest(key)
        self._wake.set()

    def _rest(self, key: PoolKey) -> None:
        """Leave a kind alone that fails, longer each time."""
        _, before = self._resting.get(key, (0.0, _FIRST_PAUSE / 2))
        pause = min(2 * before, _LONGEST_PAUSE)
        self._resting[key] = (self._clock() + pause, pause)

    def _until_change(self) -> float | None:
        now = self._clock()
        ends = [until - now for until, _ in self._resting.values() if until > now]
        if self._rest_until > now:
            ends.append(self._rest_until - now)
        if (change := self._demand.until_change()) is not None:
            ends.append(change)
        return min(ends, default=None)

    async def _is_quiet(self) -> bool:
        """Wait for a moment without creates, but not for ever. False: look again at what lacks."""
        deadline = self._clock() + _PATIENCE
        while self._clock() < deadline:
            if not self._busy() and self._clock() - self._demand.last >= QUIET:
                return True
            await asyncio.sleep(QUIET / 3)
        return not self._busy()

    async def _woken(self, timeout: float | None) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if timeout is None else timeout + 0.01):
                await self._wake.wait()


def _place(wanted: list[PoolKey], key: PoolKey) -> int:
    return wanted.index(key) if key in wanted else len(wanted)
