"""Tar streams to and from a sandbox. What a sandbox wrote is unpacked trusting nothing in it.

Stricter than tarfile's ``data`` filter: every path is walked from the destination without following
symlinks, symlinks are made last and only if they stay inside the copy, set-id bits and special
files are dropped. Blocking; runs in a worker thread.
"""

from __future__ import annotations

import os
import secrets
import stat
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol, cast

from aenv.models.errors import ConflictError, HostileArchiveError

Progress = Callable[[str, int], None]
"""Called with a path and the bytes just copied for it; from a worker thread."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 256 << 10

Parts = tuple[str, ...]


class Sink(Protocol):
    """Where a tar stream goes, in order."""

    def write(self, data: bytes, /) -> object: ...


def pack(source: Path, name: str, sink: Sink, progress: Progress | None = None) -> None:
    """Write ``source`` under the top-level ``name``; symlinks stay, owners are left out."""
    with _Packing.open(
        fileobj=cast("IO[bytes]", sink),
        mode="w|",
        format=tarfile.PAX_FORMAT,
        bufsize=_CHUNK,
    ) as archive:
        archive.copybufsize, archive.progress = _CHUNK, progress
        archive.add(source, arcname=name, filter=_without_owner)


class _Packing(tarfile.TarFile):
    """Tells of every piece as it is read."""

    copybufsize: int
    progress: Progress | None = None

    def addfile(self, tarinfo: tarfile.TarInfo, fileobj: Any = None) -> None:
        if self.progress is not None:
            self.progress(tarinfo.name, 0)
            if fileobj is not None:
                fileobj = _Told(fileobj, partial(self.progress, tarinfo.name))
        super().addfile(tarinfo, fileobj)


@dataclass(frozen=True, slots=True)
class _Told:
    file: IO[bytes]
    tell: Callable[[int], None]

    def read(self, size: int) -> bytes:
        piece = self.file.read(size)
        self.tell(len(piece))
        return piece


def _without_owner(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


@dataclass(slots=True)
class Extraction:
    """A copy being made: the archive's only top-level name ``root`` becomes ``parent/name``.

    ``skipped`` tells what was left out, and why. Everything raises HostileArchiveError for a name
    outside of ``root``.
    """

    parent: Path
    root: str
    name: str
    progress: Progress | None = None
    skipped: list[str] = field(default_factory=list)
    _links: list[tuple[Parts, str]] = field(default_factory=list)
    _folders: list[tuple[Parts, int, float]] = field(default_factory=list)

    def unpack(self, stream: IO[bytes]) -> None:
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK) as archive:
            for member in archive:
                self._add(archive, member)
        self.finish()

    def add_folder(self, name: str, mode: int, mtime: float) -> None:
        parts = self._parts(name)
        with self._folder(parts):
            self._folders.append((parts, mode & 0o777, mtime))
        self._note_bits(name, mode)

    def add_file(self, name: str, source: IO[bytes], mode: int, mtime: float) -> None:
        parts = self._parts(name)
        with self._folder(parts[:-1]) as folder, _staged(parts[-1], folder) as target:
            while piece := source.read(_CHUNK):
                target.write(piece)
                if self.progress:
                    self.progress(name, len(piece))
            target.flush()
            os.fchmod(target.fileno(), mode & 0o777)
            _set_mtime(target.fileno(), mtime)
        self._note_bits(name, mode)

    def add_symlink(self, name: str, target: str) -> None:
        parts = self._parts(name)
        if _stays_inside(parts, target):
            self._links.append((parts, target))
        else:
            self.skipped.append(f"{name} -> {target} (points outside of the copy)")

    def add_hard_link(self, name: str, existing: str) -> None:
        source, parts = self._parts(existing), self._parts(name)
        with self._folder(source[:-1]) as origin, self._folder(parts[:-1]) as folder:
            found = os.stat(source[-1], dir_fd=origin, follow_symlinks=False)
            if not stat.S_ISREG(found.st_mode):
                raise HostileArchiveError(f"a hard link of the archive names {existing!r}")
            _unlink(parts[-1], folder)
            os.link(
                source[-1], parts[-1], src_dir_fd=origin, dst_dir_fd=folder, follow_symlinks=False
            )

    def finish(self) -> None:
        """Make the symlinks, then give folders their modes and times."""
        for parts, target in self._links:
            with self._folder(parts[:-1]) as folder:
                _unlink(parts[-1], folder)
                os.symlink(target, parts[-1], dir_fd=folder)
        for parts, mode, mtime in reversed(self._folders):
            with self._folder(parts) as folder:
                os.fchmod(folder, mode)
                _set_mtime(folder, mtime)

    def _add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        if member.isdir():
            self.add_folder(member.name, member.mode, member.mtime)
        elif member.isreg():
            source = archive.extractfile(member)
            assert source is not None
            self.add_file(member.name, source, member.mode, member.mtime)
        elif member.islnk():
            self.add_hard_link(member.name, member.linkname)
        elif member.issym():
            self.add_symlink(member.name, member.linkname)
        else:
            self.skipped.append(f"{member.name} (device, pipe or socket)")

    def _note_bits(self, name: str, mode: int) -> None:
        if mode & (stat.S_ISUID | stat.S_ISGID):
            self.skipped.append(f"{name}: its set-user-ID or set-group-ID bit")

    def _parts(self, name: str) -> Parts:
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        outside = name.startswith("/") or ".." in parts or "\0" in name
        if outside or not parts or parts[0] != self.root:
            raise HostileArchiveError(f"the sandbox's archive holds {name!r}, outside of the copy")
        return (self.name, *parts[1:])

    @contextmanager
    def _folder(self, parts: Parts) -> Iterator[int]:
        """A descriptor of the directory, made where missing; a symlink on the way is refused."""
        descriptor = os.open(self.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            for part in parts:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=descriptor)
                inner = _open_folder(part, descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor
        finally:
            os.close(descriptor)


def _open_folder(part: str, parent: int) -> int:
    try:
        return os.open(part, _DIRECTORY, dir_fd=parent)
    except OSError as error:
        if stat.S_ISLNK(os.stat(part, dir_fd=parent, follow_symlinks=False).st_mode):
            raise HostileArchiveError(
                f"{part!r} is a symlink here; nothing is written through it"
            ) from error
        raise


@contextmanager
def _staged(name: str, folder: int) -> Iterator[IO[bytes]]:
    """A file that gets its name when it is whole, and is gone when it does not come to that."""
    _refuse_folder(name, folder)
    interim = f".aenv-{secrets.token_hex(8)}"
    descriptor = os.open(interim, _NEW_FILE, 0o600, dir_fd=folder)
    try:
        with open(descriptor, "wb") as target:
            yield target
        os.rename(interim, name, src_dir_fd=folder, dst_dir_fd=folder)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(interim, dir_fd=folder)
        raise


def _set_mtime(descriptor: int, mtime: float) -> None:
    with suppress(OverflowError):
        os.utime(descriptor, (mtime, mtime))


def _unlink(name: str, folder: int) -> None:
    _refuse_folder(name, folder)
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def _refuse_folder(name: str, folder: int) -> None:
    with suppress(FileNotFoundError):
        if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
            raise ConflictError(f"{name!r} is a folder already; a file does not replace it")


def _stays_inside(parts: Parts, target: str) -> bool:
    """Only as many leading ``..`` as there are folders of ours above the link, none after a name.

    A ``..`` behind a name could climb out of what another symlink points to.
    """
    steps = [step for step in target.split("/") if step not in ("", ".")]
    climbs = 0
    while climbs < len(steps) and steps[climbs] == "..":
        climbs += 1
    return not target.startswith("/") and ".." not in steps[climbs:] and climbs < len(parts) - 1
