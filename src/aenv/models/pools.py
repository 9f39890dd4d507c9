"""What a host keeps ready for creates: machines that wait, and memory images of templates."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PoolShare:
    """Of one template. ``machines`` wait now and hold ``memory`` bytes; ``wanted``: how many are
    meant to. Since the server's start, ``hits`` creates took one and ``misses`` found none.
    """

    template: str
    machines: int = 0
    memory: int = 0
    wanted: int = 0
    hits: int = 0
    misses: int = 0

    def __add__(self, other: PoolShare) -> PoolShare:
        return PoolShare(
            self.template,
            self.machines + other.machines,
            self.memory + other.memory,
            self.wanted + other.wanted,
            self.hits + other.hits,
            self.misses + other.misses,
        )


@dataclass(frozen=True, slots=True)
class PoolReport:
    """``images``: memory images of templates, on disk in ``image_bytes`` (memory and own disk)."""

    shares: tuple[PoolShare, ...] = ()
    images: int = 0
    image_bytes: int = 0

    @property
    def machines(self) -> int:
        return sum(share.machines for share in self.shares)

    @property
    def memory(self) -> int:
        return sum(share.memory for share in self.shares)
