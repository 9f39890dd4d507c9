"""Who may boot now, by what sandboxes use and not by what they are promised.

A limit is a ceiling, and idle sandboxes use little of it: together the limits may exceed the host's
memory, up to ``overcommit`` times; one alone never does. A create is admitted when

    available − reserve − expected by creates in flight − owed to new sandboxes ≥ expected by it

with the expectations of :mod:`aenv.node.usage`. Disks are thin in the same way. Creates that fit
the host, but not beside those in flight, wait for their turn.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass

from aenv.models.errors import CapabilityError, CapacityError
from aenv.models.sandboxes import Resources
from aenv.node.hosts import Headroom
from aenv.node.usage import MIB, Book

logger = logging.getLogger(__name__)

# A disk quota is a ceiling, and disks are thin: this much of it must be there at the start.
DISK_AT_START = 512 * MIB
RETRY_AFTER = 5.0
SAY_AGAIN = 60.0
"""Seconds in which refusals for one reason are logged once."""
_LOOK_AGAIN = 0.5

DiskRoom = Callable[[], Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class Bounds:
    """Bytes, ``boots`` at a time, ``patience`` in seconds. ``total``: the host's memory."""

    memory_reserve: int
    disk_reserve: int
    total: int
    overcommit: float
    boots: int
    patience: float = 30.0


@dataclass(frozen=True, slots=True)
class Demand:
    """``image``: the size in bytes of the memory image it starts from."""

    template: str
    resources: Resources
    image: int = 0


@dataclass(frozen=True, slots=True)
class _Claim:
    """Of a create in flight, in bytes."""

    limit: int
    memory: int
    disk: int


@dataclass(frozen=True, slots=True)
class _Refusal:
    reason: str
    text: str


class Admission:
    """``measure`` tells what the host has left now, in bytes.

    ``disk_room`` of :meth:`admit` is what the engine's own pool of disks has left beyond its
    reserve; without one, or when it answers None, the host's disk and reserve count. ``relieve``
    is asked for memory before a create waits or is refused for the lack of it; False: none.
    ``suffers``: why the host should take nobody now, whatever is available. ``refusals``: how many
    creates were refused, by reason.
    """

    def __init__(
        self,
        measure: Callable[[], Headroom],
        bounds: Bounds,
        book: Book,
        *,
        relieve: Callable[[], Awaitable[bool]] | None = None,
        suffers: Callable[[], str | None] = lambda: None,
    ) -> None:
        self._measure = measure
        self._bounds = bounds
        self._book = book
        self._relieve = relieve or _nothing_to_give
        self._suffers = suffers
        self._turn = asyncio.Lock()
        self._released = asyncio.Event()
        self._claims: list[_Claim] = []
        self._said: dict[str, float] = {}
        self.refusals: Counter[str] = Counter()

    @asynccontextmanager
    async def admit(self, demand: Demand, disk_room: DiskRoom | None = None) -> AsyncIterator[None]:
        """Hold what it needs for the time of a create.

        Raises CapacityError with the figures, CapabilityError when this host can never hold it.
        """
        self._require_possible(demand.resources)
        try:
            async with asyncio.timeout(self._bounds.patience), self._turn:
                claim = await self._wait_for_room(demand, disk_room or _host_disk)
                self._claims.append(claim)
        except TimeoutError:
            text = (
                f"{len(self._claims)} sandboxes are being started and hold what this one needs; "
                "try again shortly"
            )
            raise self._refused(_Refusal("busy", text)) from None
        try:
            yield
        finally:
            self._claims.remove(claim)
            self._released.set()

    async def spare(self, demand: Demand, disk_room: DiskRoom) -> bool:
        """Whether a create would be admitted at once, with nothing given back for it."""
        if self._turn.locked() or self._claims:
            return False
        await self._book.refresh()
        room = await disk_room()
        return self._refusal(self._claim(demand), self._measure(), room) is None

    def _require_possible(self, resources: Resources) -> None:
        if resources.memory_mb * MIB > self._bounds.total:
            self.refusals["too_large"] += 1
            raise CapabilityError(
                f"a sandbox of {resources.memory_mb} MiB cannot run on this host, which has "
                f"{self._bounds.total // MIB} MiB of memory; ask for less (memoryMB, --memory)"
            )

    async def _wait_for_room(self, demand: Demand, disk_room: DiskRoom) -> _Claim:
        while True:
            self._released.clear()
            claim, left = self._claim(demand), self._measure()
            if self._lacks_memory(claim, left):
                await self._book.refresh()
                claim = self._claim(demand)
            while self._lacks_memory(claim, left) and await self._relieve():
                left = self._measure()
            refusal = self._refusal(claim, left, await disk_room())
            if refusal is None and len(self._claims) < self._bounds.boots:
                return claim
            if refusal is not None and not self._claims:
                raise self._refused(refusal)
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_AGAIN):
                    await self._released.wait()

    def _refused(self, refusal: _Refusal) -> CapacityError:
        self.refusals[refusal.reason] += 1
        if time.monotonic() >= self._said.get(refusal.reason, 0.0):
            self._said[refusal.reason] = time.monotonic() + SAY_AGAIN
            logger.warning("a create was refused (%s): %s", refusal.reason, refusal.text)
        return CapacityError(refusal.text, retry_after=RETRY_AFTER)

    def _claim(self, demand: Demand) -> _Claim:
        resources = demand.resources
        return _Claim(
            limit=resources.memory_mb * MIB,
            memory=self._book.expected(demand.template, resources, demand.image),
            disk=min(resources.disk_mb * MIB, DISK_AT_START),
        )

    def _lacks_memory(self, claim: _Claim, left: Headroom) -> bool:
        free = left.memory - self._bounds.memory_reserve - self._spoken_for()
        return claim.memory > free

    def _spoken_for(self) -> int:
        return sum(claim.memory for claim in self._claims) + self._book.owed()

    def _refusal(self, claim: _Claim, left: Headroom, room: int | None) -> _Refusal | None:
        if self._lacks_memory(claim, left):
            text = _short("memory", claim.memory, left.memory, self._bounds.memory_reserve)
            if others := self._spoken_for():
                text += f" ({others // MIB} MiB are set aside for those that have just started)"
            return _Refusal("memory", text)
        if suffering := self._suffers():
            return _Refusal("pressure", suffering)
        return self._overcommitted(claim) or self._disk_refusal(claim, left, room)

    def _overcommitted(self, claim: _Claim) -> _Refusal | None:
        promised = self._book.promised() + sum(claim.limit for claim in self._claims)
        most = int(self._bounds.overcommit * self._bounds.total)
        if promised + claim.limit <= most:
            return None
        return _Refusal(
            "overcommit",
            f"sandboxes are promised {promised // MIB} MiB of memory, and {claim.limit // MIB} MiB "
            f"more would exceed {self._bounds.overcommit:g} × the host's; kill or pause sandboxes, "
            "ask for less, or raise memory_overcommit",
        )

    def _disk_refusal(self, claim: _Claim, left: Headroom, room: int | None) -> _Refusal | None:
        reserve = self._bounds.disk_reserve if room is None else 0
        room = left.disk if room is None else max(0, room)
        if claim.disk <= room - reserve - sum(one.disk for one in self._claims):
            return None
        return _Refusal("disk", _short("disk", claim.disk, room, reserve))


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
