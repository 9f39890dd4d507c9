"""The loop that ends what is over, finishes what was interrupted and forgets what is old. It
outlives any failure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from aenv.control.background import Background
from aenv.control.boots import Boots
from aenv.control.clocks import SECOND, Clock, StepDetector
from aenv.control.creation import KEY_LIFE
from aenv.control.endings import Endings
from aenv.models.errors import AenvError, InfrastructureError
from aenv.models.sandboxes import SandboxState
from aenv.node.port import Node
from aenv.store import idempotency
from aenv.store import sandboxes as rows
from aenv.store.catalog import Catalog
from aenv.store.records import SandboxRecord

log = structlog.get_logger()
TICK = 0.5
SWEEP_EVERY = 30 * SECOND
REMEMBER = 24 * 3600 * SECOND
FORGET_TIMEOUT = 10.0
LONGEST_PAUSE = 10.0
STUCK = (SandboxState.CREATING, SandboxState.KILLING)


class Reaper:
    """``expire`` ends or pauses what is due. ``tick``: the longest sleep in seconds, so a deadline
    passed during a suspend is seen soon after.
    """

    def __init__(
        self,
        catalog: Catalog,
        node: Node,
        clock: Clock,
        endings: Endings,
        boots: Boots,
        background: Background,
        *,
        expire: Callable[[SandboxRecord], Coroutine[Any, Any, None]],
        tick: float = TICK,
    ) -> None:
        self._catalog = catalog
        self._node = node
        self._clock = clock
        self._endings = endings
        self._boots = boots
        self._background = background
        self._expire_one = expire
        self._tick = tick
        self._pause = tick
        self._steps = StepDetector(clock)
        self._wake = asyncio.Event()
        self._next: int | None = 0
        self._next_sweep = clock.boot() + SWEEP_EVERY

    def deadline(self, end_at: int) -> None:
        """There is a deadline at ``end_at``."""
        if self._next is None or end_at < self._next:
            self._next = end_at
            self._wake.set()

    async def run(self) -> None:
        while True:
            try:
                await self.pass_once()
            except Exception as error:  # noqa: BLE001 - the loop must go on
                log.error("reaper failed, goes on", error=repr(error))
                self._next = 0
                await asyncio.sleep(self._tick)
            await self._sleep()

    async def pass_once(self) -> None:
        """End what is due; now and then sweep."""
        if step := self._steps.step():
            log.warning("the clock was set; deadlines move along", seconds=step / SECOND)
            await self._catalog.write(lambda db: rows.shift_ends(db, step))
            self._next = 0
        now = self._clock.wall()
        if self._next is not None and self._next <= now:
            await self._expire(now)
        if self._clock.boot() >= self._next_sweep:
            self._next_sweep = self._clock.boot() + SWEEP_EVERY
            await self._sweep(now)

    async def _expire(self, now: int) -> None:
        self._wake.clear()
        due = await self._catalog.read(lambda db: rows.due(db, now))
        ended = [
            self._background.start(self._expire_one(record), f"expire {record.id}")
            for record in due
        ]
        if ended:
            done, _ = await asyncio.wait(ended, timeout=self._tick)
            self._back_off([error for task in done if (error := task.exception())])
        self._next = None
        next_end = await self._catalog.read(rows.next_end)
        if next_end is not None:
            self._next = next_end if self._next is None else min(self._next, next_end)

    def _back_off(self, errors: list[BaseException]) -> None:
        """What could not be ended is tried again, ever more slowly: a full disk is no reason to
        spin and to log.
        """
        if errors:
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
            log.error("not ended yet", sandboxes=len(errors), error=repr(errors[0]))
        else:
            self._pause = self._tick

    async def _sweep(self, now: int) -> None:
        """Finish what nobody works on, and forget what ended long ago."""
        stuck = await self._catalog.read(lambda db: rows.in_states(db, STUCK))
        for record in stuck:
            if record.state is SandboxState.KILLING:
                await self._endings.resume(record)
            elif record.id not in self._boots.making:
                lost = InfrastructureError("its creation was interrupted")
                await self._endings.abandon(record, lost)
        await self._catalog.write(lambda db: idempotency.purge(db, now - KEY_LIFE))
        forgotten = await self._catalog.write(lambda db: rows.purge(db, now - REMEMBER))
        for sandbox_id in forgotten:
            await self._forget(sandbox_id)

    async def _forget(self, sandbox_id: str) -> None:
        try:
            async with asyncio.timeout(FORGET_TIMEOUT):
                await self._node.forget(sandbox_id)
        except (AenvError, TimeoutError) as error:
            log.warning("logs not dropped", sandbox_id=sandbox_id, error=repr(error))

    async def _sleep(self) -> None:
        seconds = self._tick
        if self._next is not None:
            left = (self._next - self._clock.wall()) / SECOND
            seconds = min(self._tick, left) if left > 0 else self._pause
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return
        self._wake.clear()
