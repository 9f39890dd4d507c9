"""What is put into the store: files, whose holes are not read, and streams."""

from __future__ import annotations

import asyncio
import errno
import hashlib
import os
from collections.abc import AsyncIterable, AsyncIterator
from contextlib import closing
from pathlib import Path

from aenv.models.errors import InvalidRequestError
from aenv.store.blobs.chunks import Chunker, Piece

Source = Path | AsyncIterable[bytes]
BLOCK = 1 << 20
"""Bytes read at once; looking at them holds the interpreter for a fraction of a millisecond."""
_ZEROS = bytes(BLOCK)


class Pieces:
    """The pieces of a source, in order. ``digest`` and ``length`` once all were taken."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._chunker = Chunker()
        self._hash = hashlib.sha256()

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    @property
    def length(self) -> int:
        return self._chunker.length

    async def __aiter__(self) -> AsyncIterator[Piece]:
        async for block in _blocks(self._source):
            for piece in await asyncio.to_thread(self._take, block):
                yield piece
        for piece in self._chunker.finish():
            yield piece

    def _take(self, block: bytes | int) -> list[Piece]:
        if isinstance(block, bytes):
            self._hash.update(block)
            return list(self._chunker.feed(block))
        for start in range(0, block, BLOCK):
            self._hash.update(memoryview(_ZEROS)[: block - start])
        return list(self._chunker.feed_zeros(block))


async def _blocks(source: Source) -> AsyncIterator[bytes | int]:
    """Data, or how many zeros."""
    if not isinstance(source, Path):
        async for data in source:
            for start in range(0, len(data), BLOCK):
                yield bytes(data[start : start + BLOCK])
        return
    with closing(await asyncio.to_thread(_File, source)) as file:
        while block := await asyncio.to_thread(file.next):
            yield block


class _File:
    def __init__(self, path: Path) -> None:
        try:
            self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise InvalidRequestError(f"{path} cannot be put: {error.strerror}") from error
        self._size = os.fstat(self._descriptor).st_size
        self._at = 0
        self._data_end = 0

    def close(self) -> None:
        os.close(self._descriptor)

    def next(self) -> bytes | int:
        """Up to BLOCK of data, the length of a hole, or b"" at the end."""
        if self._at >= self._data_end and (hole := self._skip_hole()):
            return hole
        wanted = min(BLOCK, self._data_end - self._at)
        data = os.pread(self._descriptor, wanted, self._at)
        self._at += len(data)
        return data

    def _skip_hole(self) -> int:
        start = self._at
        try:
            self._at = os.lseek(self._descriptor, start, os.SEEK_DATA)
            self._data_end = os.lseek(self._descriptor, self._at, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # no holes are told of here
                self._data_end = self._size
                return 0
            self._at = self._data_end = self._size  # nothing but a hole is left
        return self._at - start
