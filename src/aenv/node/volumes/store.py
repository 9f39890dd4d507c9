"""Where the volumes of an engine's machines are kept: the port."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from aenv.models.volumes import VolumeMount, VolumeUse


@dataclass(frozen=True, slots=True)
class VolumeFolder:
    """``content`` is what sandboxes see; ``staging``, on the same file system and under the same
    quota, what they do not.
    """

    content: Path
    staging: Path


class VolumeStore(ABC):
    """``name``: a volume's id, or for a copy of a sandbox's own ``{sandbox}+{volume}``."""

    @abstractmethod
    async def make(self, volume_id: str, size_mb: int) -> None:
        """A new empty one. Raises ConflictError, DiskFullError, EngineError."""

    @abstractmethod
    async def drop(self, volume_id: str) -> None:
        """Delete it and all in it; idempotent."""

    @abstractmethod
    async def drop_of(self, sandbox_id: str) -> None:
        """Delete the copies that belong to a sandbox; idempotent."""

    @abstractmethod
    async def reap(self, keep: Collection[str]) -> list[str]:
        """Delete what is neither a volume nor of a sandbox in ``keep``, and half-made files;
        returns its names.
        """

    @abstractmethod
    async def folder(self, name: str) -> VolumeFolder:
        """Raises EngineError when it is gone."""

    @abstractmethod
    async def use(self, name: str) -> VolumeUse: ...

    @abstractmethod
    async def attach(
        self, sandbox_id: str, mounts: tuple[VolumeMount, ...], source: str | None, size_mb: int
    ) -> dict[str, VolumeFolder]:
        """The folder of each, by path. Copies of its own that are not there yet are made of those
        that were kept with the disk image ``source``; ``size_mb``: their limit. Raises
        SnapshotDamagedError when there is none.
        """


def name_of(sandbox_id: str, mount: VolumeMount) -> str:
    """The store's name of what a sandbox has mounted."""
    return f"{sandbox_id}+{mount.volume_id}" if mount.own else mount.volume_id
