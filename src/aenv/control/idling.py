"""A server that was started on demand ends when nobody needs it.

Paused sandboxes are on disk and in the catalog, and the next server has them: they need none, but
those that traffic is to wake, and those that are in memory alone. Before it ends, the memory of the
others is given back: nothing would give it back afterwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from aenv.control.clocks import SECOND, Clock
from aenv.control.deadlines import deadline
from aenv.models.errors import AenvError
from aenv.models.sandboxes import SandboxState
from aenv.node.port import Node
from aenv.store import sandboxes as rows
from aenv.store.catalog import Catalog
from aenv.store.records import SandboxRecord

log = structlog.get_logger()
DEMOTE_TIMEOUT = 60.0


class Activity:
    """Requests that count as use: all but health checks and metrics."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._open = 0
        self._last = clock.boot()

    def begin(self) -> None:
        self._open += 1

    def finish(self) -> None:
        self._open -= 1
        self._last = self._clock.boot()

    def idle_seconds(self) -> float:
        return 0.0 if self._open else (self._clock.boot() - self._last) / SECOND


class IdleWatch:
    """Calls ``stop`` after ``seconds`` without a request and without a sandbox that needs a
    server.
    """

    def __init__(
        self,
        catalog: Catalog,
        node: Node,
        activity: Activity,
        seconds: float,
        stop: Callable[[], None],
    ) -> None:
        self._catalog = catalog
        self._node = node
        self._activity = activity
        self._seconds = seconds
        self._stop = stop

    async def run(self) -> None:
        while True:
            left = self._left()
            if left > 0:
                await asyncio.sleep(max(0.05, min(left, 5.0)))
                continue
            if not await self._in_use():
                await self._demote_all()
                if self._left() <= 0 and not await self._in_use():
                    self._stop()
                    return
                continue
            await asyncio.sleep(min(self._seconds, 5.0))

    def _left(self) -> float:
        return self._seconds - self._activity.idle_seconds()

    async def _in_use(self) -> bool:
        """The time without use begins after the last that needed a server."""
        found = await self._catalog.read(lambda db: rows.in_states(db, LIVING))
        needed = any(_needs_server(record) for record in found)
        if needed:
            self._activity.begin()
            self._activity.finish()
        return needed

    async def _demote_all(self) -> None:
        paused = (SandboxState.PAUSED,)
        for record in await self._catalog.read(lambda db: rows.in_states(db, paused)):
            try:
                async with deadline(DEMOTE_TIMEOUT, "giving back the memory of a paused sandbox"):
                    await self._node.demote(record.id)
            except AenvError as error:
                log.warning("a paused sandbox stays hot", sandbox_id=record.id, error=str(error))


LIVING = tuple(set(SandboxState) - {SandboxState.KILLED, SandboxState.FAILED})


def _needs_server(record: SandboxRecord) -> bool:
    if record.state is not SandboxState.PAUSED:
        return True
    return record.auto_resume or record.snapshot_id is None
