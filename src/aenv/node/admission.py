"""Who may boot now: a create is admitted when the host has the memory and disk it was promised.

Memory and disk of running sandboxes are measured, not added up: a limit is a ceiling, and idle
sandboxes use little of it. What a create in flight was promised does not show in the measurement
yet, so it is subtracted until the create is done. Creates that fit the host, but not beside those
in flight, wait for their turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from aenv.models.errors import CapacityError
from aenv.models.sandboxes import Resources
from aenv.node.hosts import Headroom

MIB = 1024 * 1024
# A disk quota is a ceiling, and disks are thin: this much of it must be there at the start.
DISK_AT_START = 512 * MIB
RETRY_AFTER = 5.0

DiskRoom = Callable[[], Awaitable[int | None]]


class Admission:
    """``measure`` tells what the host has left now, in bytes.

    ``disk_room`` of :meth:`admit` is what the engine's own pool of disks has left beyond its
    reserve; without one, or when it answers None, the host's disk and reserve count. ``relieve``
    is asked for memory before a create waits or is refused for the lack of it; False: none.
    """

    def __init__(
        self,
        measure: Callable[[], Headroom],
        *,
        memory_reserve: int,
        disk_reserve: int,
        boots: int,
        patience: float = 30.0,
        relieve: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        self._measure = measure
        self._reserve = Headroom(memory_reserve, disk_reserve)
        self._boots = boots
        self._patience = patience
        self._relieve = relieve or _nothing_to_give
        self._turn = asyncio.Lock()
        self._released = asyncio.Event()
        self._promised: list[Headroom] = []

    @asynccontextmanager
    async def admit(
        self, resources: Resources, disk_room: DiskRoom | None = None
    ) -> AsyncIterator[None]:
        """Hold the promise for the time of a create. Raises CapacityError with the figures."""
        demand = Headroom(
            memory=resources.memory_mb * MIB, disk=min(resources.disk_mb * MIB, DISK_AT_START)
        )
        try:
            async with asyncio.timeout(self._patience), self._turn:
                await self._wait_for_room(demand, disk_room or _host_disk)
                self._promised.append(demand)
        except TimeoutError:
            raise CapacityError(
                f"{len(self._promised)} sandboxes are being started and hold what this one needs; "
                "try again shortly",
                retry_after=RETRY_AFTER,
            ) from None
        try:
            yield
        finally:
            self._promised.remove(demand)
            self._released.set()

    async def _wait_for_room(self, demand: Headroom, disk_room: DiskRoom) -> None:
        while True:
            self._released.clear()
            while self._lacks_memory(demand) and await self._relieve():
                pass
            refusal = self._refusal(demand, await disk_room())
            if refusal is None and len(self._promised) < self._boots:
                return
            if refusal is not None and not self._promised:
                raise CapacityError(refusal, retry_after=RETRY_AFTER)
            await self._released.wait()

    def _lacks_memory(self, demand: Headroom) -> bool:
        promised = sum(promise.memory for promise in self._promised)
        return demand.memory > self._measure().memory - self._reserve.memory - promised

    def _refusal(self, demand: Headroom, room: int | None) -> str | None:
        left = self._measure()
        memory = left.memory - self._reserve.memory - sum(p.memory for p in self._promised)
        if demand.memory > memory:
            return _short("memory", demand.memory, left.memory, self._reserve.memory)
        reserve = self._reserve.disk if room is None else 0
        room = left.disk if room is None else max(0, room)
        if demand.disk > room - reserve - sum(p.disk for p in self._promised):
            return _short("disk", demand.disk, room, reserve)
        return None


async def _nothing_to_give() -> bool:
    return False


async def _host_disk() -> int | None:
    return None


def _short(what: str, demand: int, left: int, reserve: int) -> str:
    return (
        f"the host is short of {what}: the sandbox needs {demand // MIB} MiB, {left // MIB} MiB "
        f"are available and {reserve // MIB} MiB of them are kept in reserve; kill sandboxes, ask "
        f"for less, or free some {what} on the host"
    )
