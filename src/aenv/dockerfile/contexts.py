"""The files of a COPY: chosen, hashed, and packed as a server takes them."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from aenv.dockerfile.ignoring import Ignored, matcher
from aenv.models.errors import InvalidRequestError

_CHUNK = 1 << 20
_META = frozenset("*?[")


class Context:
    """A folder whose files are sent, but for what is ignored."""

    def __init__(self, folder: Path, ignored: Ignored) -> None:
        self._folder = folder
        self._ignored = ignored

    def choose(self, source: str) -> list[str]:
        """Paths of what a COPY names, folders before what is in them. InvalidRequestError when
        there is nothing of it.
        """
        found = sorted(set(self._chosen(source)))
        if not found:
            raise InvalidRequestError(f"there is nothing of {source!r} in the context")
        return found

    def hash(self, source: str, paths: list[str]) -> str:
        """Of names, modes and contents; not of owners and times."""
        digest = hashlib.sha256(f"COPY {source}\0".encode())
        for path in paths:
            status = (self._folder / path).lstat()
            kind = stat.S_IFMT(status.st_mode)
            digest.update(f"{path}\0{kind}\0{stat.S_IMODE(status.st_mode)}\0".encode())
            if stat.S_ISLNK(status.st_mode):
                digest.update(os.readlink(self._folder / path).encode() + b"\0")
            elif stat.S_ISREG(status.st_mode):
                digest.update(f"{status.st_size}\0".encode())
                for chunk in _chunks(self._folder / path):
                    digest.update(chunk)
        return digest.hexdigest()

    def pack(self, paths: list[str], into: BinaryIO) -> None:
        with tarfile.open(fileobj=into, mode="w:gz", compresslevel=6) as archive:
            for path in paths:
                archive.add(self._folder / path, path, recursive=False, filter=_nobodys)

    def unpacked(self, source: str, into: BinaryIO) -> str:
        """Write an archive of the context as ADD takes it apart, gzipped; its hash."""
        (path,) = self.choose(source)
        with tarfile.open(self._folder / path) as archive:
            archive.next()  # a ReadError for what is none
        digest = hashlib.sha256(b"ADD\0")
        with _plain(self._folder / path) as plain, gzip.GzipFile(fileobj=into, mode="wb") as out:
            while chunk := plain.read(_CHUNK):
                digest.update(chunk)
                out.write(chunk)
        return digest.hexdigest()

    def _chosen(self, source: str) -> Iterator[str]:
        if not _META & set(source):
            whole = self._folder if source == "." else self._folder / source
            if not os.path.lexists(whole) or (source != "." and self._ignored(source)):
                return
            yield from self._with_content(source)
            return
        wanted = matcher(source)
        for path in self._walk("."):
            if wanted.fullmatch(path) and not self._ignored(path):
                yield from self._with_content(path)

    def _with_content(self, path: str) -> Iterator[str]:
        yield path
        place = self._folder if path == "." else self._folder / path
        if place.is_dir() and not place.is_symlink():
            for one in self._walk(path):
                if not self._ignored(one):
                    yield one

    def _walk(self, folder: str) -> Iterator[str]:
        place = self._folder if folder == "." else self._folder / folder
        for entry in sorted(os.scandir(place), key=lambda one: one.name):
            path = entry.name if folder == "." else f"{folder}/{entry.name}"
            yield path
            if entry.is_dir(follow_symlinks=False) and not self._ignored.prunes(path):
                yield from self._walk(path)


def inline(name: str, content: bytes, into: BinaryIO, mode: int = 0o644) -> str:
    """An archive of one file; its hash."""
    with tarfile.open(fileobj=into, mode="w:gz") as archive:
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(content), mode
        archive.addfile(entry, io.BytesIO(content))
    return hashlib.sha256(f"FILE {name}\0{mode}\0".encode() + content).hexdigest()


def _nobodys(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    return entry


def _plain(path: Path) -> BinaryIO:
    """The archive without its compression."""
    import bz2
    import lzma

    start = path.open("rb").read(6)
    if start.startswith(b"\x1f\x8b"):
        return gzip.open(path)  # type: ignore[return-value]
    if start.startswith(b"BZh"):
        return bz2.open(path)  # type: ignore[return-value]
    if start.startswith(b"\xfd7zXZ"):
        return lzma.open(path)  # type: ignore[return-value]
    return path.open("rb")


def _chunks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk
