"""What a sandbox writes to: an overlay over read-only layers, with a size limit where the pool can enforce one."""

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
    """``merged`` is the root file system to boot from, ``upper`` what the sandbox changed."""

    sandbox_id: str
    merged: Path
    upper: Path

    @abstractmethod
    def usage(self) -> DiskUsage:
        """Cheap; no I/O that waits."""

    @abstractmethod
    async def destroy(self) -> None:
        """Unmount and delete; idempotent. The sandbox must have ended."""
