"""What a host's memory is promised to, and what of it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class MemoryShare:
    """Sandboxes of one kind: how many, and bytes. ``promised``: the sum of their limits."""

    sandboxes: int = 0
    promised: int = 0
    used: int = 0

    def __add__(self, other: MemoryShare) -> MemoryShare:
        return MemoryShare(
            self.sandboxes + other.sandboxes,
            self.promised + other.promised,
            self.used + other.used,
        )


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Running, paused in memory (``hot``) and waiting in a pool; ``used`` as the host accounts it.

    ``stalled``: the share of time in which some task of the host waited for memory, None where the
    kernel does not tell. ``exhausted``: short of memory, and nothing is left to give back.
    ``relieved``: how often memory was given back, by kind. ``refusals``: of creates, by reason.
    """

    running: MemoryShare = MemoryShare()
    hot: MemoryShare = MemoryShare()
    pooled: MemoryShare = MemoryShare()
    total: int = 0
    available: int = 0
    stalled: float | None = None
    exhausted: bool = False
    relieved: Mapping[str, int] = field(default_factory=dict)
    refusals: Mapping[str, int] = field(default_factory=dict)

    @property
    def kinds(self) -> dict[str, MemoryShare]:
        return {"running": self.running, "hot": self.hot, "pooled": self.pooled}

    @property
    def ratio(self) -> float:
        """Promised to running sandboxes ÷ used by all; 0 without any."""
        used = sum(share.used for share in self.kinds.values())
        return self.running.promised / used if used else 0.0
