"""The files of one volume on this host."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

from aenv.models.errors import (
    AenvError,
    ConflictError,
    DiskFullError,
    EngineError,
    InvalidRequestError,
    NotFoundError,
)
from aenv.models.volumes import Ownership, VolumeEntry
from aenv.node.volumes import digests, trees
from aenv.node.volumes.content import MOST_DEPTH, OpenFile, VolumeContent
from aenv.node.volumes.store import VolumeFolder

_CHUNK = 1 << 20


class LocalFile(OpenFile):
    def __init__(self, handle: int) -> None:
        self._handle: int | None = handle
        self.size = os.fstat(handle).st_size

    async def chunks(self, start: int, end: int) -> AsyncIterator[bytes]:
        assert self._handle is not None
        try:
            while start < end:
                size = min(_CHUNK, end - start)
                chunk = await asyncio.to_thread(os.pread, self._handle, size, start)
                if not chunk:
                    raise EngineError("the file became shorter while it was read")
                start += len(chunk)
                yield chunk
        finally:
            await self.close()

    async def close(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            os.close(handle)


class LocalContent(VolumeContent):
    def __init__(self, folder: VolumeFolder) -> None:
        self._content = folder.content
        self._staging = folder.staging

    async def look(self, path: str) -> VolumeEntry:
        with _told(path):
            return await asyncio.to_thread(trees.look, self._content, _bytes(path))

    async def walk(self, path: str, depth: int = 1) -> list[VolumeEntry]:
        if not 1 <= depth <= MOST_DEPTH:
            raise InvalidRequestError(f"depth: 1 to {MOST_DEPTH}, not {depth}")
        with _told(path):
            return await asyncio.to_thread(trees.walk, self._content, _bytes(path), depth)

    async def make_folder(self, path: str, owner: Ownership, *, parents: bool) -> VolumeEntry:
        def make() -> VolumeEntry:
            return trees.make_folder(self._content, _bytes(path), owner, parents=parents)

        with _told(path):
            return await asyncio.to_thread(make)

    async def change(self, path: str, owner: Ownership) -> VolumeEntry:
        with _told(path):
            return await asyncio.to_thread(trees.change, self._content, _bytes(path), owner)

    async def remove(self, path: str) -> None:
        with _told(path):
            await asyncio.to_thread(trees.remove, self._content, self._staging, _bytes(path))

    async def open(self, path: str) -> OpenFile:
        with _told(path):
            handle = await asyncio.to_thread(trees.open_to_read, self._content, _bytes(path))
        return LocalFile(handle)

    async def write(self, path: str, chunks: AsyncIterator[bytes], owner: Ownership) -> VolumeEntry:
        target = _bytes(path)
        with _told(path):
            handle, name = await asyncio.to_thread(trees.open_to_write, self._staging)
            try:
                try:
                    async for chunk in chunks:
                        await asyncio.to_thread(_write, handle, chunk)
                    await asyncio.to_thread(os.fsync, handle)
                finally:
                    os.close(handle)
                return await asyncio.to_thread(
                    trees.put, self._content, self._staging, name, target, owner
                )
            finally:
                trees.discard(self._staging, name)

    async def digest(self) -> str:
        with _told("/"):
            return await asyncio.to_thread(digests.of_tree, self._content)


def _write(handle: int, chunk: bytes) -> None:
    rest = memoryview(chunk)
    while rest:
        rest = rest[os.write(handle, rest) :]


def _bytes(path: str) -> bytes:
    try:
        found = path.encode()
    except UnicodeEncodeError:
        raise InvalidRequestError("path: it is no text") from None
    if not found or b"\0" in found:
        raise InvalidRequestError("path: it is empty or holds a NUL")
    return found


@contextmanager
def _told(path: str) -> Iterator[None]:
    """What the system refuses, as errors of ours."""
    try:
        yield
    except AenvError:
        raise
    except OSError as error:
        raise _failure(error, path[:256]) from error


def _failure(error: OSError, path: str) -> AenvError:
    match error.errno:
        case errno.ENOENT:
            return NotFoundError(f"there is no {path!r} in the volume")
        case errno.EEXIST | errno.EISDIR | errno.ENOTEMPTY:
            return ConflictError(f"{path!r} exists in the volume, or is a folder")
        case errno.ENOSPC | errno.EDQUOT:
            return DiskFullError(f"no room in the volume for {path!r}; remove something from it")
        case errno.ENOTDIR | errno.ELOOP | errno.ENXIO | errno.EINVAL | errno.ENAMETOOLONG:
            return InvalidRequestError(
                f"path: {path!r} leads to no file or folder that can be used"
            )
        case errno.EACCES | errno.EXDEV | errno.EFBIG | errno.EPERM:
            return InvalidRequestError(f"path: {path!r}: {error.strerror}")
    return EngineError(f"{path!r} in the volume: {error.strerror}")
