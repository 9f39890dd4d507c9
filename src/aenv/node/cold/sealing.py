"""Sealing: the changes a disk holds over its layers (an overlay's upper) become one EROFS image.

The image is a layer like any other: whiteouts, opaque folders and redirects stay as the overlay
reads them, what it notes for itself alone (origins, link counts) does not. It depends on nothing
but the tree. Blocking, and to be run in a process of its own.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from aenv.models.errors import EngineError
from aenv.node.images.oci.imagefiles import ImageFile
from aenv.node.images.oci.inodes import BLOCK, device_number
from aenv.node.images.oci.trees import Node

MOST_INODES = 2_000_000
MOST_BYTES = 1 << 38
"""Holes included: they take no room, but digests of them take a second per GiB and more."""
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KEPT = (b"user.", b"trusted.", b"security.")
_OVERLAY = b"trusted.overlay."
_OVERLAY_KEPT = frozenset({b"trusted.overlay.opaque", b"trusted.overlay.redirect"})


@dataclass(frozen=True, slots=True)
class Sealed:
    """``digest``: sha256 of the image. ``skipped``: by kind, what no image can hold."""

    digest: str
    bytes: int
    inodes: int
    skipped: dict[str, int] = field(default_factory=dict)


def seal(upper: Path, target: Path) -> Sealed:
    """Write the image of ``upper``, which must not change, to ``target`` (absent).

    Raises EngineError for what no image can hold at all, DiskFullError, OSError.
    """
    image = ImageFile(target)
    try:
        walk = _Walk(image)
        root = walk.tree(upper)
        size = image.finish(root)
    finally:
        image.close()
    with target.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return Sealed(digest, size, walk.inodes, dict(walk.skipped))


@dataclass(slots=True)
class _Level:
    """An open folder, and what of it is left to visit."""

    descriptor: int
    node: Node
    names: list[bytes]


class _Walk:
    """By descriptors, so that no path is too long; in the order of names."""

    def __init__(self, image: ImageFile) -> None:
        self._image = image
        self._linked: dict[int, Node] = {}
        self._bytes = 0
        self.inodes = 0
        self.skipped: Counter[str] = Counter()

    def tree(self, upper: Path) -> Node:
        levels = [self._enter(os.open(upper, _FOLDER))]
        root = levels[0].node
        try:
            while levels:
                level = levels[-1]
                if not level.names:
                    os.close(levels.pop().descriptor)
                elif (below := self._visit(level, level.names.pop())) is not None:
                    levels.append(below)
        finally:
            for level in levels:
                os.close(level.descriptor)
        return root

    def _enter(self, descriptor: int) -> _Level:
        node = self._node(os.fstat(descriptor), _attributes(descriptor))
        node.children = {}
        with os.scandir(descriptor) as entries:
            names = sorted((os.fsencode(entry.name) for entry in entries), reverse=True)
        return _Level(descriptor, node, names)

    def _visit(self, level: _Level, name: bytes) -> _Level | None:
        """Add an entry to its folder; the level it opens, if it is a folder itself."""
        status = os.stat(name, dir_fd=level.descriptor, follow_symlinks=False)
        assert level.node.children is not None
        if stat.S_ISDIR(status.st_mode):
            below = self._enter(os.open(name, _FOLDER, dir_fd=level.descriptor))
            level.node.children[name] = below.node
            return below
        if stat.S_ISSOCK(status.st_mode):
            self.skipped["sockets"] += 1
            return None
        node = self._linked.get(status.st_ino)
        if node is None:
            node = self._leaf(level.descriptor, name, status)
            if status.st_nlink > 1:
                self._linked[status.st_ino] = node
        level.node.children[name] = node
        return None

    def _leaf(self, parent: int, name: bytes, status: os.stat_result) -> Node:
        place = b"/proc/self/fd/%d/%s" % (parent, name)
        node = self._node(status, _attributes(place))
        if stat.S_ISREG(status.st_mode):
            self._copy(parent, name, status.st_size, node)
        elif stat.S_ISLNK(status.st_mode):
            node.target = os.readlink(name, dir_fd=parent)
        elif stat.S_ISCHR(status.st_mode) or stat.S_ISBLK(status.st_mode):
            node.device = device_number(os.major(status.st_rdev), os.minor(status.st_rdev))
        return node

    def _copy(self, parent: int, name: bytes, size: int, node: Node) -> None:
        self._bytes += size + BLOCK
        if self._bytes > MOST_BYTES:
            raise EngineError(
                f"the files of the disk are longer than {MOST_BYTES >> 30} GiB together, holes "
                "included: no layer can hold them"
            )
        node.size = size
        descriptor = os.open(name, _FILE, dir_fd=parent)
        try:
            node.block = self._image.append_sparse(descriptor, size)
        finally:
            os.close(descriptor)

    def _node(self, status: os.stat_result, attributes: list[tuple[bytes, bytes]]) -> Node:
        self.inodes += 1
        if self.inodes > MOST_INODES:
            raise EngineError(f"the disk has more than {MOST_INODES} files: no layer is made of it")
        kept = []
        for name, value in attributes:
            if name.startswith(_OVERLAY) and name not in _OVERLAY_KEPT:
                continue
            if name.startswith(_KEPT):
                kept.append((name, value))
            else:
                self.skipped["attributes"] += 1
        return Node(
            status.st_mode,
            uid=status.st_uid,
            gid=status.st_gid,
            mtime=max(0, status.st_mtime_ns),
            xattrs=tuple(sorted(kept)),
        )


def _attributes(place: int | bytes) -> list[tuple[bytes, bytes]]:
    follow = isinstance(place, int)
    return [
        (os.fsencode(name), os.getxattr(place, name, follow_symlinks=follow))
        for name in os.listxattr(place, follow_symlinks=follow)
    ]
