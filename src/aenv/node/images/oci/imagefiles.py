"""Write an EROFS image from what an archive's reader delivers: no file of it ever exists elsewhere.

The format is that of the kernel's ``fs/erofs/erofs_fs.h``: a superblock, the data of files in
blocks of 4 KiB, then the inodes (extended, 64 bytes). Files are neither compressed nor packed into
inodes, so that what reads EROFS by memory mapping can use the image, too; runs of zeros are holes
of the image file.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from aenv.models.errors import DiskFullError
from aenv.node.images.oci.inodes import BLOCK, Inodes, aligned, superblock
from aenv.node.images.oci.trees import Node

SPARE_BYTES = 512 << 20
"""What is left free on the disk: a layer may claim any size."""
_CHUNK = 1 << 20
_HOLE = 64 << 10
_ZEROS = bytes(_HOLE)
_CHECK_EVERY = 64 << 20


class ImageFile:
    """An image being written to ``path`` (absent). First the data, then :meth:`finish`.

    Raises DiskFullError while there is still some room.
    """

    def __init__(self, path: Path, *, spare_bytes: int = SPARE_BYTES) -> None:
        self._path = path
        self._spare = spare_bytes
        self._file: BinaryIO = path.open("xb")
        self._end = BLOCK
        self._unchecked = _CHECK_EVERY

    def close(self) -> None:
        self._file.close()

    def append(self, read: Callable[[int], bytes], size: int) -> int:
        """Copy ``size`` bytes; the number of their first block. Raises EOFError."""
        start = self._end
        self._file.seek(start)
        left = size
        while left:
            chunk = read(min(left, _CHUNK))
            if not chunk:
                raise EOFError
            self._write(chunk)
            left -= len(chunk)
        self._end = start + aligned(size, BLOCK)
        return start // BLOCK

    def append_sparse(self, descriptor: int, size: int) -> int:
        """Copy ``size`` bytes of an open file, its holes unread; the number of their first block.
        Raises EOFError.
        """
        start, at = self._end, 0
        while at < size:
            try:
                data = os.lseek(descriptor, at, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break  # nothing but a hole is left
            end = min(os.lseek(descriptor, data, os.SEEK_HOLE), size)
            self._file.seek(start + data)
            for offset in range(data, end, _CHUNK):
                chunk = os.pread(descriptor, min(_CHUNK, end - offset), offset)
                if not chunk:
                    raise EOFError
                self._write(chunk)
            at = end
        self._end = start + aligned(size, BLOCK)
        return start // BLOCK

    def finish(self, root: Node) -> int:
        """Write the inodes and the superblock, and make all durable; the image's size."""
        inodes = Inodes(root)
        for node in inodes.large:
            node.block = self._end // BLOCK
            self._at(self._end, inodes.payload(node))
            self._end += aligned(node.size, BLOCK)
        first = self._end // BLOCK
        for offset, data in inodes.written():
            self._at(self._end + offset, data)
        blocks = first + inodes.blocks
        self._at(1024, superblock(inodes, first, blocks))
        self._file.truncate(blocks * BLOCK)
        self._file.flush()
        os.fsync(self._file.fileno())
        self.close()
        return blocks * BLOCK

    def _at(self, offset: int, data: bytes) -> None:
        self._file.seek(offset)
        self._write(data)

    def _write(self, chunk: bytes) -> None:
        self._check_room(len(chunk))
        view = memoryview(chunk)
        try:
            for offset in range(0, len(chunk), _HOLE):
                part = view[offset : offset + _HOLE]
                if part == _ZEROS[: len(part)]:
                    self._file.seek(len(part), os.SEEK_CUR)
                else:
                    self._file.write(part)
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise _full(self._path) from error
            raise

    def _check_room(self, more: int) -> None:
        self._unchecked += more
        if self._unchecked >= _CHECK_EVERY:
            self._unchecked = 0
            if shutil.disk_usage(self._path.parent).free < self._spare + _CHECK_EVERY:
                raise _full(self._path)


def _full(path: Path) -> DiskFullError:
    return DiskFullError(
        f"the disk of {path.parent} is full: the image's layers do not fit; free some space or set "
        "AENV_CACHE_DIR to a larger disk"
    )
