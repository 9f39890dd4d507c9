"""The machines that wait: each ready for one kind of create, claimed for one of them, or gone."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from aenv.models.errors import AenvError
from aenv.models.memory import MemoryShare
from aenv.models.pools import PoolShare
from aenv.node.machines import Waiting
from aenv.node.memos import Memos
from aenv.node.pools.demand import PoolKey

logger = logging.getLogger(__name__)

CLAIM_LIFE = 60.0


@dataclass(slots=True, eq=False)
class Pooled:
    """``memory``: bytes it holds. ``watcher`` waits for its death."""

    sandbox_id: str
    key: PoolKey
    waiting: Waiting
    memory: int
    watcher: asyncio.Task[None] | None = None
    expiry: asyncio.TimerHandle | None = None

    def let_go(self) -> None:
        for held in (self.watcher, self.expiry):
            if held is not None:
                held.cancel()
        self.watcher = self.expiry = None


class Shelf:
    """``on_loss`` is told the kind of a machine that died while it waited."""

    def __init__(self, memos: Memos, on_loss: Callable[[PoolKey], None]) -> None:
        self._memos = memos
        self._on_loss = on_loss
        self._ready: dict[PoolKey, list[Pooled]] = {}
        self._claimed: dict[str, Pooled] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._sizes: dict[PoolKey, int] = {}
        self.hits: Counter[str] = Counter()
        self.misses: Counter[str] = Counter()

    def add(self, pooled: Pooled) -> None:
        self._sizes[pooled.key] = pooled.memory
        self._put(pooled)

    def claim(self, key: PoolKey) -> str | None:
        """Never suspends, so that no two callers get the same."""
        ready = self._ready.get(key)
        if not ready:
            self.misses[key.template] += 1
            return None
        pooled = ready.pop()
        pooled.let_go()
        loop = asyncio.get_running_loop()
        pooled.expiry = loop.call_later(CLAIM_LIFE, self._expire, pooled.sandbox_id)
        self._claimed[pooled.sandbox_id] = pooled
        return pooled.sandbox_id

    def unclaim(self, sandbox_id: str) -> None:
        if (pooled := self.take(sandbox_id)) is not None:
            self._put(pooled)

    def take(self, sandbox_id: str) -> Pooled | None:
        """What was claimed under this id, now the caller's."""
        pooled = self._claimed.pop(sandbox_id, None)
        if pooled is not None:
            pooled.let_go()
        return pooled

    def count(self, key: PoolKey) -> int:
        return len(self._ready.get(key, ()))

    def size(self, key: PoolKey, otherwise: int) -> int:
        """Bytes of the last machine of this kind."""
        return self._sizes.get(key, otherwise)

    def kinds(self) -> list[PoolKey]:
        return list(self._ready)

    async def discard_one(self, key: PoolKey) -> None:
        """The one that waited longest; nothing when there is none."""
        if self.count(key):
            await self.discard([self._ready[key][0]])

    async def discard_where(self, doomed: Callable[[PoolKey], bool]) -> None:
        found = [one for key, ready in self._ready.items() if doomed(key) for one in ready]
        await self.discard(found)

    async def discard_all(self) -> None:
        claimed = [self.take(name) for name in list(self._claimed)]
        await self.discard(one for one in claimed if one)
        await self.discard_where(lambda key: True)
        await asyncio.gather(*self._leaving, return_exceptions=True)

    async def discard(self, pooled: Iterable[Pooled]) -> None:
        """Destroy machines; what fails is left to the next start."""
        gone = list(pooled)
        for one in gone:
            self._remove(one)
        await asyncio.gather(*(self._destroy(one) for one in gone))

    def shares(self, wanted: dict[PoolKey, int]) -> tuple[PoolShare, ...]:
        names = self.hits.keys() | self.misses.keys()
        found = {
            name: PoolShare(name, hits=self.hits[name], misses=self.misses[name]) for name in names
        }
        for key, ready in self._ready.items():
            memory = sum(one.memory for one in ready)
            share = PoolShare(key.template, len(ready), memory)
            found[key.template] = found.get(key.template, PoolShare(key.template)) + share
        for key, number in wanted.items():
            before = found.get(key.template, PoolShare(key.template))
            found[key.template] = before + PoolShare(key.template, wanted=number)
        return tuple(found[name] for name in sorted(found))

    async def share(self) -> MemoryShare:
        """Machines that wait are promised to nobody."""
        waiting = [one for ready in self._ready.values() for one in ready]
        waiting += self._claimed.values()
        used = await asyncio.gather(*(_used(one) for one in waiting))
        return MemoryShare(len(waiting), 0, sum(used))

    def _put(self, pooled: Pooled) -> None:
        self._ready.setdefault(pooled.key, []).append(pooled)
        name = f"pooled-{pooled.sandbox_id}"
        pooled.watcher = asyncio.create_task(self._watch(pooled), name=name)

    def _remove(self, pooled: Pooled) -> None:
        pooled.let_go()
        ready = self._ready.get(pooled.key, [])
        if pooled in ready:
            ready.remove(pooled)
        if not ready:
            self._ready.pop(pooled.key, None)

    async def _watch(self, pooled: Pooled) -> None:
        try:
            said = (await pooled.waiting.machine.wait()).reason
        except AenvError as error:
            said = str(error)
        logger.warning("a machine that waited has died: %s", said)
        pooled.watcher = None  # this very task
        self._remove(pooled)
        self._leave(pooled)
        self._on_loss(pooled.key)

    def _expire(self, sandbox_id: str) -> None:
        if (pooled := self.take(sandbox_id)) is not None:
            logger.warning("no sandbox was made of the claimed machine %s", sandbox_id)
            self._leave(pooled)

    def _leave(self, pooled: Pooled) -> None:
        task = asyncio.create_task(self._destroy(pooled), name=f"leave-{pooled.sandbox_id}")
        self._leaving.add(task)
        task.add_done_callback(self._leaving.discard)

    async def _destroy(self, pooled: Pooled) -> None:
        try:
            await pooled.waiting.discard()
        except AenvError as error:
            logger.warning("a machine that waited could not be removed: %s", error)
        else:
            self._memos.remove(pooled.sandbox_id)


async def _used(pooled: Pooled) -> int:
    try:
        return await pooled.waiting.machine.memory_used()
    except AenvError:  # it has just ended
        return 0
