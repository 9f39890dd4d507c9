"""Taking turns at a sandbox's machine: pausing, resuming and copying it happen one at a time.

Each runs in a task of its own: a caller that hangs up leaves nothing half done, and the end of the
sandbox calls it off.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import structlog
from sqlalchemy import Connection

from aenv.control.background import Background
from aenv.models.errors import AenvError, ConflictError, SandboxNotFoundError
from aenv.store.catalog import Catalog

log = structlog.get_logger()
T = TypeVar("T")
LONGEST_PAUSE = 30.0


class Turns:
    """``retry_pause``: seconds before the second attempt at a write that must not be lost."""

    def __init__(
        self, catalog: Catalog, background: Background, *, retry_pause: float = 1.0
    ) -> None:
        self._catalog = catalog
        self._background = background
        self._retry_pause = retry_pause
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._tasks: dict[str, set[asyncio.Task[Any]]] = {}

    def busy(self, sandbox_id: str) -> bool:
        return sandbox_id in self._tasks

    async def take(self, sandbox_id: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do ``work`` after what came before it. SandboxNotFoundError when its end came first."""
        task = self._background.start(self._in_turn(sandbox_id, work), f"turn {sandbox_id}")
        tasks = self._tasks.setdefault(sandbox_id, set())
        tasks.add(task)
        task.add_done_callback(lambda _: self._done(sandbox_id, task))
        await asyncio.wait({task})
        if task.cancelled():
            raise SandboxNotFoundError(f"sandbox {sandbox_id!r} was not found: it ended meanwhile")
        return task.result()

    async def idle(self, sandbox_id: str) -> None:
        """Return when all that is under way now is done."""
        if tasks := self._others(sandbox_id):
            await asyncio.wait(tasks)

    async def cancel(self, sandbox_id: str, timeout: float = 30) -> None:
        """Call off what is under way and wait until it has let go."""
        tasks = self._others(sandbox_id)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=timeout)

    async def insist(self, work: Callable[[Connection], T]) -> T:
        """Write what has happened already, however long the catalog cannot be written."""
        return await self._insisted(lambda: self._catalog.write(work))

    async def insist_lasting(self, work: Callable[[Connection], T]) -> T:
        """The same, and return when a loss of power cannot undo it: before it is acknowledged that
        something is kept.
        """
        found = await self.insist(work)
        await self._insisted(self._catalog.sync)
        return found

    async def _insisted(self, attempt: Callable[[], Awaitable[T]]) -> T:
        pause = self._retry_pause
        while True:
            try:
                return await attempt()
            except ConflictError:
                raise
            except AenvError as error:
                log.error("not recorded yet, tried again", error=str(error))
            await asyncio.sleep(pause)
            pause = min(pause * 2, LONGEST_PAUSE)

    async def _in_turn(self, sandbox_id: str, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        lock = self._locks.setdefault(sandbox_id, asyncio.Lock())
        async with lock:
            return await work()

    def _others(self, sandbox_id: str) -> set[asyncio.Task[Any]]:
        return self._tasks.get(sandbox_id, set()) - {asyncio.current_task()}

    def _done(self, sandbox_id: str, task: asyncio.Task[Any]) -> None:
        tasks = self._tasks.get(sandbox_id, set())
        tasks.discard(task)
        if not tasks:
            self._tasks.pop(sandbox_id, None)
