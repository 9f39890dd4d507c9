"""What a sandbox writes to: an overlay over read-only layers.

Its size is limited where the pool can enforce that. The guest sees EDQUOT ("disk quota exceeded")
at its own limit and ENOSPC when the whole pool is full.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes written by the sandbox, and the most it may write (0 = not enforced)."""

    used_bytes: int
    limit_bytes: int


class Disk(ABC):
    """``merged`` is the root file system to boot from, ``upper`` what the sandbox changed.

    ``lowers`` are the read-only layers below, topmost first.
    """

    sandbox_id: str
    merged: Path
    upper: Path
    lowers: tuple[Path, ...]

    @abstractmethod
    def usage(self) -> DiskUsage:
        """Microseconds; where no quota counts, a figure up to ten seconds old."""

    @abstractmethod
    async def destroy(self) -> None:
        """Unmount and delete; idempotent. The sandbox must have ended."""
