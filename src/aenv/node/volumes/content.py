"""The files of one volume, as control sees them: the port."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

from aenv.models.volumes import Ownership, VolumeEntry

MOST_DEPTH = 64


class OpenFile(ABC):
    """A file to read; ``size`` in bytes, as it was opened."""

    size: int

    @abstractmethod
    def chunks(self, start: int, end: int) -> AsyncIterator[bytes]:
        """Bytes ``start`` to before ``end``; closes the file, also when it is left early."""

    @abstractmethod
    async def close(self) -> None:
        """Idempotent; for those who read nothing."""


class VolumeContent(ABC):
    """Paths are relative to the volume, with a slash in front or without; links lead nowhere but
    into the volume. All raise NotFoundError, InvalidRequestError (the path leads through a file),
    ConflictError (what is there is of another kind), DiskFullError, EngineError.
    """

    @abstractmethod
    async def look(self, path: str) -> VolumeEntry:
        """A link is shown as itself."""

    @abstractmethod
    async def walk(self, path: str, depth: int = 1) -> list[VolumeEntry]:
        """What is below a folder, at most ``MOST_DEPTH`` levels deep."""

    @abstractmethod
    async def make_folder(self, path: str, owner: Ownership, *, parents: bool) -> VolumeEntry: ...

    @abstractmethod
    async def change(self, path: str, owner: Ownership) -> VolumeEntry: ...

    @abstractmethod
    async def remove(self, path: str) -> None:
        """A folder with all in it."""

    @abstractmethod
    async def open(self, path: str) -> OpenFile:
        """A regular file, and nothing else."""

    @abstractmethod
    async def write(self, path: str, chunks: AsyncIterator[bytes], owner: Ownership) -> VolumeEntry:
        """A file, whole or as before, also when ``chunks`` fail; folders on the way are made."""

    @abstractmethod
    async def digest(self) -> str:
        """``sha256:…`` of the whole tree: names, types, modes, owners, contents, link targets."""
