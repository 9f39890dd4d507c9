"""A server that was started on demand ends when nobody needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from aenv.control.clocks import SECOND, Clock
from aenv.models.sandboxes import SandboxState
from aenv.store import sandboxes as rows
from aenv.store.catalog import Catalog


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
    """Calls ``stop`` after ``seconds`` without a sandbox and without a request."""

    def __init__(
        self, catalog: Catalog, activity: Activity, seconds: float, stop: Callable[[], None]
    ) -> None:
        self._catalog = catalog
        self._activity = activity
        self._seconds = seconds
        self._stop = stop

    async def run(self) -> None:
        while True:
            left = self._seconds - self._activity.idle_seconds()
            if left > 0:
                await asyncio.sleep(max(0.05, min(left, 5.0)))
                continue
            if not await self._in_use():
                self._stop()
                return
            await asyncio.sleep(min(self._seconds, 5.0))

    async def _in_use(self) -> bool:
        """Sandboxes count until their ends; the time without use begins after the last."""
        usage = await self._catalog.read(rows.usage_by_state)
        living = sum(used.sandboxes for state, used in usage.items() if state in COUNTED)
        if living:
            self._activity.begin()
            self._activity.finish()
        return living > 0


COUNTED = frozenset(SandboxState) - {SandboxState.KILLED, SandboxState.FAILED}
