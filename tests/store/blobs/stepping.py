"""Work on a blob store that stops before its n-th request to the store or the catalog: to go on
later, or to be killed there, with nothing of its clean-up done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from sqlalchemy import Connection

from aenv.store.blobs.ledger import Ledger
from aenv.store.blobs.objects import Listed, Objects
from aenv.store.blobs.store import BlobStore

T = TypeVar("T")


class Killed(BaseException):
    """What a process sees of kill -9, were it to see it."""


class Gate:
    """``steps``: how many requests may pass before all stop."""

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._open = asyncio.Event()
        self.stopped = asyncio.Event()
        self.dead = False

    async def __call__(self) -> None:
        while self._steps <= 0 and not self.dead:
            self.stopped.set()
            self._open.clear()
            await self._open.wait()
        if self.dead:
            raise Killed
        self._steps -= 1

    def let(self, steps: int) -> None:
        self._steps = steps
        self.stopped.clear()
        self._open.set()

    def kill(self) -> None:
        self.dead = True
        self._open.set()


class SteppedObjects(Objects):
    def __init__(self, real: Objects, gate: Gate) -> None:
        super().__init__(real._store, real.location, real.folder)
        self._gate = gate

    async def put(self, key: str, data: bytes) -> None:
        await self._gate()
        await super().put(key, data)

    async def get(self, key: str, most: int) -> bytes:
        await self._gate()
        return await super().get(key, most)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._gate()
        await super().delete(keys)

    async def listed(self, prefix: str | None = None) -> AsyncIterator[list[Listed]]:
        await self._gate()
        async for batch in super().listed(prefix):
            yield batch
            await self._gate()


class SteppedLedger(Ledger):
    gate: Gate

    async def read(self, work: Callable[[Connection], T]) -> T:
        await self.gate()
        return await super().read(work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        await self.gate()
        return await super().write(work)


class Work:
    """One put or collection, of a process of its own."""

    def __init__(
        self, store: BlobStore, steps: int, what: Callable[[BlobStore], Coroutine[Any, Any, Any]]
    ) -> None:
        self._gate = Gate(steps)
        ledger = SteppedLedger(store.ledger._catalog, "node", now=store.ledger._now)
        ledger.gate = self._gate
        stepped = BlobStore(SteppedObjects(store.objects, self._gate), ledger)
        self._task = asyncio.create_task(what(stepped))

    async def rest(self) -> bool:
        """Until it has stopped (True) or ended (False)."""
        stopped = asyncio.create_task(self._gate.stopped.wait())
        await asyncio.wait({self._task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        stopped.cancel()
        return not self._task.done()

    async def go_on(self, steps: int) -> bool:
        self._gate.let(steps)
        return await self.rest()

    async def kill(self) -> None:
        self._gate.kill()
        await asyncio.wait({self._task})
        if not self._task.cancelled():
            self._task.exception()

    def outcome(self) -> Any:
        """What it returned, or the error it raised."""
        error = self._task.exception()
        return self._task.result() if error is None else error
