"""How many machines of a kind should wait: what the creates of the last minutes would have used."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from aenv.models.sandboxes import Resources

BURST = 1.0
"""Seconds: creates this close to each other would each have used a machine of their own."""
_REMEMBERED = 256


@dataclass(frozen=True, slots=True)
class PoolKey:
    """What a machine must be made of, and with, to serve a create. ``engine`` is a name."""

    template: str
    resources: Resources
    engine: str
    snapshot: str | None = None


@dataclass(slots=True)
class _Asked:
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))


class Demand:
    """``idle``: seconds after which a create counts no more."""

    def __init__(self, idle: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle = idle
        self._clock = clock
        self._asked: dict[PoolKey, _Asked] = {}
        self.last = float("-inf")

    def note(self, key: PoolKey) -> None:
        """A create came, whether a machine waited for it or not."""
        self.last = self._clock()
        asked = self._asked.pop(key, None) or _Asked()
        asked.times.append(self.last)
        self._asked[key] = asked

    def forget(self, key: PoolKey) -> None:
        self._asked.pop(key, None)

    def kinds(self) -> list[PoolKey]:
        """Those that are wanted at all, the one asked for last first."""
        self._age()
        return list(reversed(self._asked))

    def wanted(self, key: PoolKey) -> int:
        """The most creates within a burst."""
        self._age()
        times = list(self._asked[key].times) if key in self._asked else []
        most = first = 0
        for last, at in enumerate(times):
            while at - times[first] > BURST:
                first += 1
            most = max(most, last - first + 1)
        return most

    def until_change(self) -> float | None:
        """Seconds until the next create is forgotten."""
        oldest = [asked.times[0] for asked in self._asked.values() if asked.times]
        return max(0.0, min(oldest) + self._idle - self._clock()) if oldest else None

    def _age(self) -> None:
        horizon = self._clock() - self._idle
        for key, asked in list(self._asked.items()):
            while asked.times and asked.times[0] <= horizon:
                asked.times.popleft()
            if not asked.times:
                del self._asked[key]
