"""Samples of every running sandbox, from the engine and from its guest: an hour, in memory."""

from __future__ import annotations

import asyncio
import logging
import time
from array import array
from collections.abc import Awaitable, Callable
from dataclasses import astuple, dataclass, field

from aenv.models.errors import AenvError
from aenv.models.sandboxes import Resources, SandboxMetrics
from aenv.node.agents import AgentClient
from aenv.node.agentwire import AgentMetrics
from aenv.node.engine import Machine, MachineStats

logger = logging.getLogger(__name__)

INTERVAL = 5.0
CAPACITY = 720
SAMPLE_TIMEOUT = 3.0
UNRESPONSIVE_AFTER = 3
_CONCURRENCY = 8
_COLUMNS = 8

HangListener = Callable[[str, bool], Awaitable[None]]


class SampleRing:
    """The newest ``capacity`` samples in 64 bytes each."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._cells = array("d")
        self._next = 0

    def __len__(self) -> int:
        return len(self._cells) // _COLUMNS

    def add(self, sample: SandboxMetrics) -> None:
        row = array("d", astuple(sample))
        if len(self) < self._capacity:
            self._cells.extend(row)
        else:
            self._cells[self._next * _COLUMNS : (self._next + 1) * _COLUMNS] = row
            self._next = (self._next + 1) % self._capacity

    def samples(self) -> list[SandboxMetrics]:
        order = [*range(self._next, len(self)), *range(self._next)]
        return [self._sample(row) for row in order]

    def _sample(self, row: int) -> SandboxMetrics:
        time_, count, pct, *sizes = self._cells[row * _COLUMNS : (row + 1) * _COLUMNS]
        used, total, cache, disk_used, disk_total = map(int, sizes)
        return SandboxMetrics(time_, count, pct, used, total, cache, disk_used, disk_total)


@dataclass(slots=True)
class _Tracked:
    """``resources`` is None for an adopted sandbox: the engine and the guest tell the limits."""

    machine: Machine
    agent: AgentClient
    resources: Resources | None
    ring: SampleRing = field(default_factory=SampleRing)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    live: bool = True
    failures: int = 0
    previous: tuple[float, float] | None = None
    memory: int | None = None


class MetricsSampler:
    """Samples every INTERVAL seconds; tells ``on_hang`` when an agent hangs and when it is back."""

    def __init__(
        self,
        on_hang: HangListener,
        *,
        interval: float = INTERVAL,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._on_hang = on_hang
        self._interval = interval
        self._clock = clock
        self._tracked: dict[str, _Tracked] = {}
        self._loop: asyncio.Task[None] | None = None

    def start(self) -> None:
        if self._loop is None:
            self._loop = asyncio.create_task(self._run(), name="metrics")

    async def close(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None

    def track(
        self, sandbox_id: str, machine: Machine, agent: AgentClient, resources: Resources | None
    ) -> None:
        """Samples of before, if there are any, are kept."""
        before = self._tracked.get(sandbox_id)
        ring = before.ring if before else SampleRing()
        self._tracked[sandbox_id] = _Tracked(machine, agent, resources, ring)

    def untrack(self, sandbox_id: str) -> None:
        """No more samples; those taken stay until :meth:`forget`."""
        if tracked := self._tracked.get(sandbox_id):
            tracked.live = False

    def forget(self, sandbox_id: str) -> None:
        self._tracked.pop(sandbox_id, None)

    def unresponsive(self, sandbox_id: str) -> bool:
        tracked = self._tracked.get(sandbox_id)
        return tracked is not None and tracked.failures >= UNRESPONSIVE_AFTER

    def memory(self, sandbox_id: str) -> int | None:
        """Bytes of the host's memory that it used at the last sample."""
        tracked = self._tracked.get(sandbox_id)
        return tracked.memory if tracked is not None and tracked.live else None

    async def query(
        self, sandbox_id: str, *, start: float | None = None, end: float | None = None
    ) -> list[SandboxMetrics]:
        """Samples in time order. The first one is taken here if none was taken yet."""
        tracked = self._tracked.get(sandbox_id)
        if tracked is None:
            return []
        if tracked.live and not len(tracked.ring):
            await self._sample_first(sandbox_id, tracked)
        return [
            sample
            for sample in tracked.ring.samples()
            if (start is None or sample.timestamp >= start)
            and (end is None or sample.timestamp <= end)
        ]

    async def sample_all(self) -> None:
        gate = asyncio.Semaphore(_CONCURRENCY)

        async def one(sandbox_id: str, tracked: _Tracked) -> None:
            async with gate:
                await self._sample(sandbox_id, tracked)

        live = [(name, found) for name, found in self._tracked.items() if found.live]
        await asyncio.gather(*(one(sandbox_id, tracked) for sandbox_id, tracked in live))

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.sample_all()
            except Exception:
                logger.exception("a round of metrics failed")

    async def _sample_first(self, sandbox_id: str, tracked: _Tracked) -> None:
        async with tracked.lock:
            if len(tracked.ring):
                return
        await self._sample(sandbox_id, tracked)

    async def _sample(self, sandbox_id: str, tracked: _Tracked) -> None:
        async with tracked.lock:
            stats, guest = await asyncio.gather(_stats(tracked.machine), _guest(tracked.agent))
            if not tracked.live:
                return
            if stats is not None or guest is not None:
                tracked.ring.add(self._combine(tracked, stats, guest))
            await self._judge(sandbox_id, tracked, answered=guest is not None)

    def _combine(
        self, tracked: _Tracked, stats: MachineStats | None, guest: AgentMetrics | None
    ) -> SandboxMetrics:
        """CPU and disk as the host accounts them, memory as the guest uses it, of what it was
        promised (its own total holds the engine's share too)."""
        now = self._clock()
        limits = tracked.resources
        count = limits.cpu if limits else (guest.cpu_count if guest else 1.0)
        pct = guest.cpu_used_pct if guest else 0.0
        if stats is not None:
            pct = _cpu_pct(tracked.previous, (now, stats.cpu_seconds), count)
            tracked.previous = (now, stats.cpu_seconds)
            tracked.memory = stats.memory_bytes
        memory_limit = limits.memory_mb * 1024 * 1024 if limits else 0
        return SandboxMetrics(
            timestamp=now,
            cpu_count=count,
            cpu_used_pct=round(pct, 2),
            mem_used=guest.mem_used if guest else (stats.memory_bytes if stats else 0),
            mem_total=memory_limit or (guest.mem_total if guest else 0),
            mem_cache=guest.mem_cache if guest else 0,
            disk_used=stats.disk_used_bytes if stats else (guest.disk_used if guest else 0),
            disk_total=stats.disk_limit_bytes if stats else (guest.disk_total if guest else 0),
        )

    async def _judge(self, sandbox_id: str, tracked: _Tracked, *, answered: bool) -> None:
        if answered:
            hung, tracked.failures = tracked.failures >= UNRESPONSIVE_AFTER, 0
            if hung:
                await self._on_hang(sandbox_id, False)
            return
        tracked.failures += 1
        if tracked.failures == UNRESPONSIVE_AFTER:
            await self._on_hang(sandbox_id, True)


def _cpu_pct(previous: tuple[float, float] | None, now: tuple[float, float], count: float) -> float:
    """Per cent of one vCPU, averaged over ``count`` of them, since the sample before."""
    if previous is None or now[0] <= previous[0] or count <= 0:
        return 0.0
    used = max(0.0, now[1] - previous[1])
    return 100.0 * used / (now[0] - previous[0]) / count


async def _stats(machine: Machine) -> MachineStats | None:
    try:
        async with asyncio.timeout(SAMPLE_TIMEOUT):
            return await machine.stats()
    except (AenvError, OSError):
        return None


async def _guest(agent: AgentClient) -> AgentMetrics | None:
    try:
        return await agent.metrics(timeout=SAMPLE_TIMEOUT)
    except AenvError:
        return None
