"""What sandboxes use of the host's memory, as its control groups account it, and what a new one of
a template will.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from typing import Protocol

from aenv.models.errors import AenvError
from aenv.models.memory import MemoryShare
from aenv.models.sandboxes import Resources
from aenv.node.residents import Resident

MIB = 1024 * 1024
LEAST = 32 * MIB
UNMEASURED = 4
"""A sandbox of a template that nobody runs is expected to use this part of its limit: 1 ÷ …"""
SETTLING = 30.0
"""Seconds in which a new sandbox may still grow to what it was expected to use."""
_TYPICAL = 0.9
_CONCURRENCY = 8


class Book(Protocol):
    """What admission asks. All in bytes."""

    def expected(self, template: str, resources: Resources, image: int = 0) -> int:
        """What a new sandbox will use; ``image``: the size of the memory it starts from."""

    def owed(self) -> int:
        """What new sandboxes are expected to use beyond what they do now."""

    def promised(self) -> int:
        """The limits of all that run."""

    async def refresh(self) -> None:
        """Measure those that were not yet."""


class MemoryUse:
    """``newest``: the last sample of a running sandbox's memory, by id."""

    def __init__(
        self,
        residents: Iterable[Resident],
        newest: Callable[[str], int | None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._residents = residents
        self._newest = newest
        self._clock = clock
        self._first: dict[str, int] = {}

    def expected(self, template: str, resources: Resources, image: int = 0) -> int:
        """min(limit, max(32 MiB, image, the use that 9 of 10 running ones of the template stay
        below)); where none runs, a quarter of the limit takes the place of the last.
        """
        return _expected(resources, image, self._typical(template))

    def owed(self) -> int:
        young = [one for one in self._running() if self._clock() - one.since < SETTLING]
        typical = {name: self._typical(name) for name in {one.template.name for one in young}}
        return sum(
            max(0, _expected(one.memo.resources, one.image, typical[one.template.name]) - used)
            for one in young
            if one.memo is not None
            for used in (self._used(one) or 0,)
        )

    def promised(self) -> int:
        return sum(limit_of(one) for one in self._running())

    async def refresh(self) -> None:
        self._first |= await measure(one for one in self._running() if self._used(one) is None)
        here = {one.sandbox_id for one in self._running()}
        self._first = {name: used for name, used in self._first.items() if name in here}

    async def survey(self) -> tuple[MemoryShare, MemoryShare]:
        """Those that run, and those that are paused in memory, measured now."""
        running = self._running()
        hot = [one for one in self._residents if one.hot is not None and not one.gone]
        used = await measure([*running, *hot])
        return share_of(running, used), share_of(hot, used)

    def _typical(self, template: str) -> int | None:
        figures = (self._used(one) for one in self._running() if one.template.name == template)
        known = sorted(figure for figure in figures if figure is not None)
        return known[min(len(known) - 1, int(_TYPICAL * len(known)))] if known else None

    def _used(self, resident: Resident) -> int | None:
        newest = self._newest(resident.sandbox_id)
        return self._first.get(resident.sandbox_id) if newest is None else newest

    def _running(self) -> list[Resident]:
        return [one for one in self._residents if one.hot is None and not one.gone]


def _expected(resources: Resources, image: int, typical: int | None) -> int:
    limit = resources.memory_mb * MIB
    if typical is None:
        typical = 0 if image else limit // UNMEASURED
    return min(limit, max(LEAST, image, typical))


def limit_of(resident: Resident) -> int:
    return resident.memo.resources.memory_mb * MIB if resident.memo else 0


def share_of(residents: list[Resident], used: dict[str, int]) -> MemoryShare:
    return MemoryShare(
        len(residents),
        sum(limit_of(one) for one in residents),
        sum(used.get(one.sandbox_id, 0) for one in residents),
    )


async def measure(residents: Iterable[Resident]) -> dict[str, int]:
    """Bytes by id, without those that do not tell."""
    gate = asyncio.Semaphore(_CONCURRENCY)
    found: dict[str, int] = {}

    async def one(resident: Resident) -> None:
        async with gate:
            try:
                found[resident.sandbox_id] = await resident.machine.memory_used()
            except AenvError:  # it has just ended
                return

    await asyncio.gather(*(one(resident) for resident in residents))
    return found
