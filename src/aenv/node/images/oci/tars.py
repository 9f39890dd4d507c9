"""Read a layer's archive, which may be hostile, into a tree and an image file.

Nothing of it touches a file system: names, links and devices are data here. What no honest archive
holds is refused by name.
"""

from __future__ import annotations

import io
import math
import os
import stat
import tarfile
from collections.abc import Callable

from aenv.node.images.oci.imagefiles import ImageFile
from aenv.node.images.oci.inodes import device_number
from aenv.node.images.oci.trees import HostileLayerError, Node, Tree, show

MOST_BYTES = 256 << 30
"""Of one layer, unpacked; also what its sparse files claim."""
_MOST_HEADER = 16 << 20
_MOST_XATTRS = 64 << 10
_MOST_ID = 2**32 - 2
_NAME, _PATH, _TARGET = 255, 4096, 4095
_XATTR = "SCHILY.xattr."
_KINDS = {
    tarfile.DIRTYPE: stat.S_IFDIR,
    tarfile.SYMTYPE: stat.S_IFLNK,
    tarfile.CHRTYPE: stat.S_IFCHR,
    tarfile.BLKTYPE: stat.S_IFBLK,
    tarfile.FIFOTYPE: stat.S_IFIFO,
}
_FILES = (
    tarfile.REGTYPE,
    tarfile.AREGTYPE,
    tarfile.CONTTYPE,
    tarfile.GNUTYPE_SPARSE,
)


def read(stream: Callable[[int], bytes], tree: Tree, image: ImageFile) -> None:
    """Apply one archive (uncompressed) to ``tree``; the data of files goes to ``image``.

    Raises HostileLayerError, DiskFullError.
    """
    forward = _Forward(stream)
    claimed = 0
    try:
        with tarfile.TarFile(fileobj=forward, mode="r", errors="surrogateescape") as archive:
            while (entry := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]
                path = _path(entry.name)
                claimed += max(entry.size, 0)
                if claimed > MOST_BYTES:
                    raise HostileLayerError(
                        f"the layer claims more than {MOST_BYTES >> 30} GiB at {show(path)}"
                    )
                forward.header_bytes = 0
                _apply(archive, entry, path, tree, image, forward)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise HostileLayerError(f"the layer is no whole tar archive: {error}") from error
    forward.finish()


def _apply(
    archive: tarfile.TarFile,
    entry: tarfile.TarInfo,
    path: tuple[bytes, ...],
    tree: Tree,
    image: ImageFile,
    forward: _Forward,
) -> None:
    if entry.type == tarfile.LNKTYPE:
        tree.put(path, _linked(entry, path, tree))
        return
    node = _node(entry, path)
    if entry.type in _FILES:
        data = archive.extractfile(entry)
        node.size = entry.size
        if data is not None and entry.size:
            with forward.reading_data():
                node.block = image.append(data.read, entry.size)
    tree.put(path, node)


def _node(entry: tarfile.TarInfo, path: tuple[bytes, ...]) -> Node:
    kind = stat.S_IFREG if entry.type in _FILES else _KINDS.get(entry.type)
    if kind is None or (not path and kind != stat.S_IFDIR):
        raise HostileLayerError(f"the layer's entry {show(path)} is of unknown type {entry.type!r}")
    if not (0 <= entry.uid <= _MOST_ID and 0 <= entry.gid <= _MOST_ID and entry.size >= 0):
        raise HostileLayerError(f"the layer's entry {show(path)} has an impossible owner or size")
    node = Node(
        kind | (entry.mode & 0o7777),
        entry.uid,
        entry.gid,
        _nanoseconds(entry),
        xattrs=_xattrs(entry, path),
        children={} if kind == stat.S_IFDIR else None,
    )
    if kind == stat.S_IFLNK:
        node.target = os.fsencode(entry.linkname)
        if not 0 < len(node.target) <= _TARGET or b"\0" in node.target:
            raise HostileLayerError(f"the layer's link {show(path)} has an impossible target")
    elif kind in (stat.S_IFCHR, stat.S_IFBLK):
        if not (0 <= entry.devmajor < 1 << 12 and 0 <= entry.devminor < 1 << 20):
            raise HostileLayerError(f"the layer's device {show(path)} has an impossible number")
        node.device = device_number(entry.devmajor, entry.devminor)
    return node


def _linked(entry: tarfile.TarInfo, path: tuple[bytes, ...], tree: Tree) -> Node:
    found = tree.find(_path(entry.linkname))
    if found is None or found.is_folder or found.is_whiteout:
        raise HostileLayerError(
            f"the layer's hard link {show(path)} leads to {entry.linkname[:200]!r}, "
            "which is no file of this layer"
        )
    return found


def _path(name: str) -> tuple[bytes, ...]:
    whole = os.fsencode(name)
    parts = tuple(part for part in whole.split(b"/") if part not in (b"", b"."))
    if b".." in parts or b"\0" in whole:
        raise HostileLayerError(f"the layer's entry {name[:200]!a} leads out of the image")
    if len(whole) > _PATH or any(len(part) > _NAME for part in parts):
        raise HostileLayerError(f"the layer's entry {name[:80]!a}… has too long a name")
    return parts


def _xattrs(entry: tarfile.TarInfo, path: tuple[bytes, ...]) -> tuple[tuple[bytes, bytes], ...]:
    """Those that mean something to programs; the overlay's own marks are never taken from a layer.

    Others (SELinux labels, ACLs) are left out, as other engines do.
    """
    found = []
    for key, value in entry.pax_headers.items():
        name = key.removeprefix(_XATTR)
        if name == key or name.startswith("user.overlay"):
            continue
        if name == "security.capability" or name.startswith("user."):
            raw = (os.fsencode(name), value.encode(errors="surrogateescape"))
            if len(raw[0]) > _NAME or len(raw[0]) == len("user."):
                raise HostileLayerError(f"the layer's entry {show(path)} has an unusable attribute")
            found.append(raw)
    if sum(len(name) + len(value) for name, value in found) > _MOST_XATTRS:
        raise HostileLayerError(f"the layer's entry {show(path)} has too many attributes")
    return tuple(found)


def _nanoseconds(entry: tarfile.TarInfo) -> int:
    """Of the header's own digits where it has a fraction: a float holds too few."""
    whole, _, fraction = entry.pax_headers.get("mtime", "").partition(".")
    if whole.isdecimal() and fraction.isdecimal():
        seconds, rest = int(whole[:12]), int(fraction[:9].ljust(9, "0"))
    else:
        seconds, rest = (int(entry.mtime) if math.isfinite(entry.mtime) else 0), 0
    return min(max(seconds, 0), 2**33) * 1_000_000_000 + rest


class _Forward(io.RawIOBase):
    """What tarfile reads from: forwards only, and no more for headers than an honest archive needs
    (their sizes are the archive's own claims).
    """

    def __init__(self, stream: Callable[[int], bytes]) -> None:
        super().__init__()
        self._stream = stream
        self._at = 0
        self._data = 0
        self._last = b""
        self.header_bytes = 0

    def reading_data(self) -> _Data:
        return _Data(self)

    def count_data(self, change: int) -> None:
        self._data += change

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence != io.SEEK_SET or offset < self._at:
            raise tarfile.ReadError("it would have to be read backwards")
        while self._at < offset:
            if not self._take(min(offset - self._at, 1 << 20)):
                break
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        if size is None or size < 0:
            raise tarfile.ReadError("it claims an unbounded header")
        if not self._data:
            self.header_bytes += size
            if self.header_bytes > _MOST_HEADER:
                raise HostileLayerError(f"a header of the layer claims {self.header_bytes} bytes")
        whole = self._take(size)
        while len(whole) < size and (more := self._take(size - len(whole))):
            whole += more
        self._last = whole
        return whole

    def finish(self) -> None:
        """Read to the end. Raises HostileLayerError when the archive ended in the middle."""
        if self._last.strip(b"\0"):
            raise HostileLayerError("the layer is no tar archive from some entry on")
        while self._take(1 << 20):
            pass

    def _take(self, size: int) -> bytes:
        found = self._stream(size)
        self._at += len(found)
        if self._at > MOST_BYTES:
            raise HostileLayerError(f"the layer unpacks to more than {MOST_BYTES >> 30} GiB")
        return found


class _Data:
    def __init__(self, forward: _Forward) -> None:
        self._forward = forward

    def __enter__(self) -> None:
        self._forward.count_data(1)

    def __exit__(self, *_: object) -> None:
        self._forward.count_data(-1)
