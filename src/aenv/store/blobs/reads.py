"""Reading blobs: ranges at any offset, or the whole into a file. Every chunk is checked before a
byte of it is given out.
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
import secrets
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from aenv.models.blobs import BlobRef, Progress
from aenv.models.errors import BlobDamagedError, BlobStoreError, DiskFullError, InvalidRequestError
from aenv.store.blobs import frames, manifests
from aenv.store.blobs.groups import unwrapped
from aenv.store.blobs.manifests import Manifest, Part
from aenv.store.blobs.objects import Objects

REQUESTS = 8
KEPT_BYTES = 16 << 20
Report = Callable[[Progress], None]


class BlobReader:
    """One blob, for any number of readers at once. Keeps up to KEPT_BYTES of chunks in memory.

    Nothing needs closing; what keeps the blob from being collected is its holder.
    """

    def __init__(self, objects: Objects, manifest: Manifest) -> None:
        self.ref = manifest.ref
        self._objects = objects
        self._manifest = manifest
        self._kept: OrderedDict[str, bytes] = OrderedDict()
        self._requests = asyncio.Semaphore(REQUESTS)

    @property
    def parts(self) -> tuple[Part, ...]:
        """Its chunks and holes in order of content, for those who cache chunks themselves."""
        return self._manifest.parts

    async def chunk(self, part: Part) -> bytes:
        """The content of one part. Raises BlobDamagedError, BlobMissingError, or what the store
        fails with.
        """
        if part.name is None:
            return bytes(part.length)
        if (kept := self._kept.get(part.name)) is not None:
            self._kept.move_to_end(part.name)
            return kept
        async with self._requests:
            data = await read_chunk(self._objects, part.name, part.length)
        self._keep(part.name, data)
        return data

    async def read(self, offset: int, length: int) -> bytes:
        """As ``pread``: shorter at the end of the blob. In memory as a whole."""
        if offset < 0 or length < 0:
            raise InvalidRequestError("offset and length must not be negative")
        length = min(length, self.ref.length - offset)
        if length <= 0:
            return b""
        parts = list(self._manifest.within(offset, length))
        chunks = await asyncio.gather(*(self.chunk(part) for part in parts))
        lead = offset - parts[0].offset
        return b"".join(chunks)[lead : lead + length]

    def _keep(self, name: str, data: bytes) -> None:
        self._kept[name] = data
        while sum(map(len, self._kept.values())) > KEPT_BYTES:
            self._kept.popitem(last=False)


async def open_reader(objects: Objects, blob_id: str) -> BlobReader:
    """Needs the store alone, no catalog. Raises BlobMissingError, BlobDamagedError."""
    data = await objects.get(manifests.key_of(blob_id), frames.largest(manifests.LARGEST))
    return BlobReader(objects, await asyncio.to_thread(manifests.decode, blob_id, data))


async def read_chunk(objects: Objects, name: str, length: int) -> bytes:
    data = await objects.get(manifests.chunk_key(name), frames.largest(length))
    return await asyncio.to_thread(_checked, objects, name, length, data)


async def fetch(objects: Objects, ref: BlobRef, path: Path, report: Report) -> None:
    """Write the whole blob to ``path``, sparse, at once or not at all; replaces what is there.

    Raises DiskFullError when the local disk is full, and what reading raises.
    """
    reader = await open_reader(objects, ref.id)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    try:
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            await _fill(reader, descriptor, report)
            await asyncio.to_thread(os.fsync, descriptor)
        finally:
            os.close(descriptor)
        await asyncio.to_thread(os.replace, partial, path)
        await asyncio.to_thread(_sync_folder, path.parent)
    except OSError as error:
        raise _local(error, path) from error
    finally:
        partial.unlink(missing_ok=True)


async def _fill(reader: BlobReader, descriptor: int, report: Report) -> None:
    os.ftruncate(descriptor, reader.ref.length)
    waiting = iter([part for part in reader.parts if part.name is not None])
    done = 0

    async def work() -> None:
        nonlocal done
        for part in waiting:
            data = await reader.chunk(part)
            await asyncio.to_thread(_write, descriptor, data, part.offset)
            done += part.length
            report(Progress("downloading", done, reader.ref.length))

    with unwrapped():
        async with asyncio.TaskGroup() as tasks:
            for _ in range(REQUESTS):
                tasks.create_task(work())


def _write(descriptor: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(descriptor, view, offset)
        view, offset = view[written:], offset + written


def _checked(objects: Objects, name: str, length: int, data: bytes) -> bytes:
    plain = frames.decompress(data, length)
    if plain is None or len(plain) != length:
        raise BlobDamagedError(f"chunk {name} in {objects.location} is damaged: not {length} bytes")
    if hashlib.sha256(plain).hexdigest() != name.partition("-")[0]:
        raise BlobDamagedError(f"chunk {name} in {objects.location} is damaged: another digest")
    return plain


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _local(error: OSError, path: Path) -> BlobStoreError | DiskFullError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"no room for {path}; free some disk space")
    return BlobStoreError(f"{path} cannot be written: {error.strerror}")
