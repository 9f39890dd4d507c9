"""The memory of one host: what it is promised to, who may have some of it, and taking it back."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aenv.models.memory import MemoryReport, MemoryShare
from aenv.models.settings import Settings
from aenv.node.admission import Admission, Bounds
from aenv.node.hosts import Headroom, memory_total
from aenv.node.pressure import Marks, Pressure, Reliever
from aenv.node.stalls import StallMeter
from aenv.node.usage import MIB, MemoryUse


async def _no_pool() -> MemoryShare:
    return MemoryShare()


@dataclass(frozen=True, slots=True)
class Gauges:
    """How the host is read."""

    measure: Callable[[], Headroom]
    stalls: StallMeter


class HostMemory:
    def __init__(self, settings: Settings, gauges: Gauges, use: MemoryUse) -> None:
        self._gauges = gauges
        self._use = use
        self._pooled: Callable[[], Awaitable[MemoryShare]] = _no_pool
        self._relievers: dict[str, Reliever] = {}
        self._total = memory_total()
        self.pressure = Pressure(
            lambda: gauges.measure().memory,
            gauges.stalls,
            self._relievers,
            Marks.above(settings.memory_reserve_mb * MIB),
        )
        self.admission = Admission(
            gauges.measure,
            _bounds(settings, self._total),
            use,
            relieve=self.pressure.relieve,
            suffers=self.pressure.suffering,
        )

    def give_back(
        self,
        kind: str,
        reliever: Reliever,
        pooled: Callable[[], Awaitable[MemoryShare]] | None = None,
    ) -> None:
        """Ask ``reliever`` for memory, too, after those named before. ``pooled``: what machines
        hold that wait for a sandbox.
        """
        self._relievers[kind] = reliever
        self._pooled = pooled or self._pooled

    async def report(self) -> MemoryReport:
        """Measured now."""
        running, hot = await self._use.survey()
        left = await asyncio.to_thread(self._gauges.measure)
        return MemoryReport(
            running=running,
            hot=hot,
            pooled=await self._pooled(),
            total=self._total,
            available=left.memory,
            stalled=self.pressure.stalled,
            exhausted=self.pressure.exhausted,
            relieved=dict(self.pressure.relieved),
            refusals=dict(self.admission.refusals),
        )


def _bounds(settings: Settings, total: int) -> Bounds:
    return Bounds(
        memory_reserve=settings.memory_reserve_mb * MIB,
        disk_reserve=settings.disk_reserve_mb * MIB,
        total=total,
        overcommit=settings.memory_overcommit,
        boots=max(16, 8 * (os.cpu_count() or 1)),  # some get their parts while others start
    )
