"""Time as control sees it. Deadlines are wall-clock times, as E2B's are: ``endAt`` means what it
says.

A suspended host therefore finds, on waking, that the sandboxes whose time passed meanwhile are
over: their time did pass. A clock that is *set* (NTP step, ``date -s``) is not time passing: the
reaper sees the wall clock move against the boot clock, which counts suspend but cannot be set, and
moves every deadline by the same step.
"""

from __future__ import annotations

import time
from typing import Protocol

SECOND = 1_000_000_000
_BOOT = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class Clock(Protocol):
    """Both in nanoseconds. ``boot`` goes on during suspend and is never set."""

    def wall(self) -> int: ...

    def boot(self) -> int: ...


class SystemClock:
    def wall(self) -> int:
        return time.time_ns()

    def boot(self) -> int:
        return time.clock_gettime_ns(_BOOT)


class StepDetector:
    """Tells by how much the wall clock was set since the last look; slews below ``threshold`` are
    time passing.
    """

    def __init__(self, clock: Clock, threshold: int = 2 * SECOND) -> None:
        self._clock = clock
        self._threshold = threshold
        self._offset = clock.wall() - clock.boot()

    def step(self) -> int:
        offset = self._clock.wall() - self._clock.boot()
        moved = offset - self._offset
        self._offset = offset
        return moved if abs(moved) >= self._threshold else 0
