"""Giving memory back before the host suffers.

Once a second what is available is measured. Below the low mark memory is given back until the high
mark is reached, one sandbox at a time, and measured after each. While tasks of the host wait for
memory (PSI), what is available is overestimated: then one is given back a second, up to twice the
high mark. Relievers are asked in their order; none of them touches a running sandbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from aenv.models.errors import AenvError
from aenv.node.stalls import StallMeter
from aenv.node.usage import MIB

logger = logging.getLogger(__name__)

INTERVAL = 1.0
STALLED = 0.1
"""The share of time from which waiting for memory is suffering."""

Reliever = Callable[[], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Marks:
    """Bytes available: below ``low`` giving back begins, at ``high`` it ends."""

    low: int
    high: int

    @classmethod
    def above(cls, reserve: int) -> Marks:
        """``reserve`` is what creates never get; so they are refused only after these."""
        return cls(2 * reserve, 3 * reserve)


class Pressure:
    """``relievers``: what gives memory back, by kind, in the order to ask; each frees one machine,
    or answers False. ``relieved`` counts by kind; ``exhausted``: short, with nothing left to give.
    """

    def __init__(
        self,
        available: Callable[[], int],
        stalls: StallMeter,
        relievers: Mapping[str, Reliever],
        marks: Marks,
        *,
        interval: float = INTERVAL,
    ) -> None:
        self._available = available
        self._stalls = stalls
        self._relievers = relievers
        self._marks = marks
        self._interval = interval
        self._loop: asyncio.Task[None] | None = None
        self._one_at_a_time = asyncio.Lock()
        self.relieved: Counter[str] = Counter()
        self.exhausted = False

    @property
    def stalled(self) -> float | None:
        return self._stalls.share

    def start(self) -> None:
        if self._loop is None:
            if not self._stalls.told:
                logger.info("the kernel tells nothing of waits for memory (PSI); they do not count")
            self._loop = asyncio.create_task(self._run(), name="memory-pressure")

    async def close(self) -> None:
        if self._loop is not None:
            self._loop.cancel()
            await asyncio.gather(self._loop, return_exceptions=True)
            self._loop = None

    async def relieve(self) -> bool:
        """Free one machine's memory. False: there is none to give."""
        for kind, give in self._relievers.items():
            try:
                given = await give()
            except AenvError as error:
                logger.warning("memory of a %s sandbox was not given back: %s", kind, error)
                continue
            if given:
                self.relieved[kind] += 1
                return True
        return False

    def suffering(self) -> str | None:
        """Why nobody should start now."""
        if not (self.exhausted and self._stalling):
            return None
        return (
            f"the host's tasks wait for memory {100 * (self.stalled or 0):.0f} % of the time, and "
            "nothing is left to give back; kill or pause sandboxes, or try again later"
        )

    async def check(self) -> None:
        """Look once, and give back what is needed, and no more: others who look wait."""
        async with self._one_at_a_time:
            await self._check()

    async def _check(self) -> None:
        available = await asyncio.to_thread(self._available)
        await asyncio.to_thread(self._stalls.read)
        if self._stalling and available < 2 * self._marks.high:
            self._judge(short=not await self.relieve(), available=available)
        elif available < self._marks.low:
            await self._give_back(available)
        else:
            still = self.exhausted and available < self._marks.high
            self._judge(short=still, available=available)

    async def _give_back(self, available: int) -> None:
        while available < self._marks.high:
            if not await self.relieve():
                self._judge(short=available < self._marks.low, available=available)
                return
            available = await asyncio.to_thread(self._available)
        self._judge(short=False, available=available)

    @property
    def _stalling(self) -> bool:
        return (self.stalled or 0.0) >= STALLED

    def _judge(self, *, short: bool, available: int) -> None:
        if short and not self.exhausted:
            logger.warning(
                "the host is short of memory, and nothing is left to give back: %d MiB are "
                "available, running sandboxes hold the rest",
                available // MIB,
            )
        elif self.exhausted and not short:
            logger.warning("the host has memory again: %d MiB are available", available // MIB)
        self.exhausted = short

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval)
            try:
                await self.check()
            except Exception:
                logger.exception("the host's memory was not looked at")
