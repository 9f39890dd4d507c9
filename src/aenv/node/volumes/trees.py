"""What is done to the files of a volume, one call each. Everything blocks, and raises OSError.

A guest may write there at the same time, and may have left anything: no path is resolved by its
text (``host.confined``), links are never followed to be written through, and only regular files are
opened.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from aenv.models.volumes import EntryType, Ownership, VolumeEntry
from aenv.node.disks.removals import remove_tree
from aenv.node.host.confined import make_folders, place, reopened

MOST_ENTRIES = 50_000
"""A list holds no more; EFBIG."""
_ROOT = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_TYPES = {
    stat.S_IFREG: EntryType.FILE,
    stat.S_IFDIR: EntryType.DIRECTORY,
    stat.S_IFLNK: EntryType.SYMLINK,
}


def look(content: Path, path: bytes) -> VolumeEntry:
    """A link is shown as itself."""
    with _place(content, path, follow=False) as found:
        return _entry(found, path)


def walk(content: Path, path: bytes, depth: int) -> list[VolumeEntry]:
    """What is below a folder, ``depth`` levels deep, each level by name. Links are shown, not
    followed.
    """
    entries: list[VolumeEntry] = []
    with _place(content, path) as top:
        if not stat.S_ISDIR(os.fstat(top).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        level = [b""]
        for left in range(depth, 0, -1):
            deeper: list[bytes] = []
            for folder in level:
                for name, found in _inside(top, folder):
                    inner = folder + b"/" + name
                    entries.append(_entry(found, path.rstrip(b"/") + inner))
                    if len(entries) > MOST_ENTRIES:
                        raise OSError(errno.EFBIG, f"more than {MOST_ENTRIES} entries")
                    if left > 1 and entries[-1].type is EntryType.DIRECTORY:
                        deeper.append(inner)
            level = deeper
    return entries


def make_folder(content: Path, path: bytes, owner: Ownership, *, parents: bool) -> VolumeEntry:
    """FileExistsError; with ``parents`` only if it is no folder."""
    with _parent(content, path, make=parents) as (parent, name):
        try:
            os.mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            with _place_in(parent, name) as found:
                if not (parents and stat.S_ISDIR(os.fstat(found).st_mode)):
                    raise
                return _entry(found, path)
        with _place_in(parent, name) as found:
            _give(found, _inherited(parent, owner, 0o755))
            return _entry(found, path)


def change(content: Path, path: bytes, owner: Ownership) -> VolumeEntry:
    """ELOOP for a link: nobody would mean it."""
    with _place(content, path, follow=False) as found:
        if stat.S_ISLNK(os.fstat(found).st_mode):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        _give(found, owner)
        return _entry(found, path)


def remove(content: Path, staging: Path, path: bytes) -> None:
    """A folder goes as a whole: nobody sees half of it, but where the volume is full."""
    doomed = staging / f"doomed-{secrets.token_hex(8)}"
    with _parent(content, path) as (parent, name), _opened(staging) as aside:
        try:
            os.rename(name, doomed.name, src_dir_fd=parent, dst_dir_fd=aside)
        except OSError as error:
            if error.errno not in (errno.EDQUOT, errno.ENOSPC):
                raise
            _remove_in_place(parent, name)
            return
    if doomed.is_dir() and not doomed.is_symlink():
        remove_tree(doomed)
    else:
        doomed.unlink()


def _remove_in_place(parent: int, name: bytes) -> None:
    """Without a new entry anywhere, for which there is no room."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    try:
        shutil.rmtree(os.fsdecode(name), dir_fd=parent)
    except RecursionError:
        raise OSError(errno.ENOSPC, "it is too deep to be removed without room") from None


def open_to_read(content: Path, path: bytes) -> int:
    """A descriptor of a regular file."""
    with _place(content, path) as found:
        if stat.S_ISDIR(os.fstat(found).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return reopened(found, os.O_RDONLY)


def open_to_write(staging: Path) -> tuple[int, str]:
    """A new file where no sandbox sees it: its descriptor and name."""
    name = f"upload-{secrets.token_hex(8)}"
    with _opened(staging) as aside:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, 0o600, dir_fd=aside), name


def put(content: Path, staging: Path, name: str, path: bytes, owner: Ownership) -> VolumeEntry:
    """Move what was written to its place, making folders on the way. It takes the place of a file,
    whose owner and mode it keeps, or of a link; IsADirectoryError.
    """
    with _parent(content, path, make=True) as (parent, last), _opened(staging) as aside:
        with _place_in(aside, os.fsencode(name)) as found:
            _give(found, _as_before(parent, last, owner))
        os.rename(name, last, src_dir_fd=aside, dst_dir_fd=parent)
        with _place_in(parent, last) as found:
            return _entry(found, path)


def discard(staging: Path, name: str) -> None:
    (staging / name).unlink(missing_ok=True)


def _inside(top: int, folder: bytes) -> Iterator[tuple[bytes, int]]:
    """Names in a folder below ``top`` and what they stand for; what goes away meanwhile is left
    out.
    """
    try:
        holder = place(top, folder or b".", follow=False)
    except OSError:
        return
    try:
        listed = reopened(holder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            names = sorted(os.fsencode(name) for name in os.listdir(listed))
        finally:
            os.close(listed)
        for name in names:
            try:
                found = place(holder, name, follow=False)
            except OSError:
                continue
            try:
                yield name, found
            finally:
                os.close(found)
    except NotADirectoryError:
        return
    finally:
        os.close(holder)


def _entry(found: int, path: bytes) -> VolumeEntry:
    status = os.fstat(found)
    kind = _TYPES.get(stat.S_IFMT(status.st_mode), EntryType.UNKNOWN)
    target = os.readlink(b"", dir_fd=found) if kind is EntryType.SYMLINK else None
    whole = b"/" + path.strip(b"/")
    return VolumeEntry(
        name=_shown(whole.rpartition(b"/")[2]) or "/",
        type=kind,
        path=_shown(whole),
        size=status.st_size,
        mode=stat.S_IMODE(status.st_mode),
        uid=status.st_uid,
        gid=status.st_gid,
        atime=status.st_atime_ns,
        mtime=status.st_mtime_ns,
        ctime=status.st_ctime_ns,
        target=None if target is None else _shown(target),
    )


def _shown(name: bytes) -> str:
    """Names are bytes; what is no UTF-8 is shown with marks in its place."""
    return name.decode("utf-8", "replace")


def _give(found: int, owner: Ownership) -> None:
    """A change of the owner takes set-user-id away, so the mode comes last."""
    name = f"/proc/self/fd/{found}"
    if owner.uid is not None or owner.gid is not None:
        uid = -1 if owner.uid is None else owner.uid
        os.chown(name, uid, -1 if owner.gid is None else owner.gid)
    if owner.mode is not None:
        os.chmod(name, owner.mode)


def _inherited(parent: int, owner: Ownership, mode: int) -> Ownership:
    """What is not said is as of the folder it is in."""
    status = os.fstat(parent)
    return Ownership(
        status.st_uid if owner.uid is None else owner.uid,
        status.st_gid if owner.gid is None else owner.gid,
        mode if owner.mode is None else owner.mode,
    )


def _as_before(parent: int, name: bytes, owner: Ownership) -> Ownership:
    try:
        with _place_in(parent, name) as found:
            status = os.fstat(found)
    except FileNotFoundError:
        return _inherited(parent, owner, 0o644)
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    if not stat.S_ISREG(status.st_mode):
        return _inherited(parent, owner, 0o644)
    return Ownership(
        status.st_uid if owner.uid is None else owner.uid,
        status.st_gid if owner.gid is None else owner.gid,
        stat.S_IMODE(status.st_mode) & 0o777 if owner.mode is None else owner.mode,
    )


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    found = os.open(folder, _ROOT)
    try:
        yield found
    finally:
        os.close(found)


@contextmanager
def _place(content: Path, path: bytes, *, follow: bool = True) -> Iterator[int]:
    with _opened(content) as root:
        found = place(root, path, follow=follow)
    try:
        yield found
    finally:
        os.close(found)


@contextmanager
def _place_in(folder: int, name: bytes) -> Iterator[int]:
    found = place(folder, name, follow=False)
    try:
        yield found
    finally:
        os.close(found)


@contextmanager
def _parent(content: Path, path: bytes, *, make: bool = False) -> Iterator[tuple[int, bytes]]:
    """The folder that holds ``path``, and its last name. ``make`` those that are missing; links on
    the way lead nowhere but into the volume.
    """
    *folders, name = [part for part in path.split(b"/") if part] or [b""]
    if name in (b"", b".", b".."):
        raise OSError(errno.EINVAL, "it does not end in a name")
    with _opened(content) as root:
        if make:
            make_folders(root, b"/".join(folders), _belongs)
        parent = place(root, b"/".join(folders) or b".")
    try:
        if not stat.S_ISDIR(os.fstat(parent).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
        yield parent, name
    finally:
        os.close(parent)


def _belongs(parent: int, name: bytes) -> None:
    """A new folder to whom the one around it does."""
    with _place_in(parent, name) as made:
        _give(made, _inherited(parent, Ownership(), 0o755))
