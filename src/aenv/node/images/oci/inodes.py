"""The metadata of an EROFS image: inodes in slots, directories, attributes, the superblock.

See the kernel's ``fs/erofs/erofs_fs.h``. Inodes are the extended ones of 64 bytes.
"""

from __future__ import annotations

import stat
import struct
from collections.abc import Iterator

from aenv.node.images.oci.trees import Node

BLOCK = 4096
MAGIC = 0xE0F5E1E2
_SLOT = 32
_INODE = 64
_FLAT_PLAIN, _FLAT_INLINE = 0, 2
_EXTENDED = 1
_PREFIXES = ((b"user.", 1), (b"trusted.", 4), (b"security.", 6))
_TYPES = {
    stat.S_IFREG: 1,
    stat.S_IFDIR: 2,
    stat.S_IFCHR: 3,
    stat.S_IFBLK: 4,
    stat.S_IFIFO: 5,
    stat.S_IFLNK: 7,
}


class Inodes:
    """The inodes of a tree, each with its ``size``, ``links`` and ``place`` (in slots of 32 bytes).

    What ``large`` holds needs a ``block`` for its :meth:`payload` before :meth:`written` is asked.
    """

    def __init__(self, root: Node) -> None:
        self.root = root
        self.nodes = _unique(root)
        for node in self.nodes:
            node.size = _size(node)
        self.blocks = aligned(_place(self.nodes) * _SLOT, BLOCK) // BLOCK
        self._parents = _parents(self.nodes, root)
        self.large = [
            node
            for node in self.nodes
            if (node.target or node.children is not None) and not _is_inline(node)
        ]

    def payload(self, node: Node) -> bytes:
        if node.children is not None:
            return b"".join(_directory(node, self._parents[id(node)]))
        return node.target

    def written(self) -> Iterator[tuple[int, bytes]]:
        """Each inode's bytes with their offset from the first block of all."""
        for serial, node in enumerate(self.nodes, 1):
            tail = self.payload(node) if _is_inline(node) else b""
            yield node.place * _SLOT, _inode(node, serial) + tail


def _unique(root: Node) -> list[Node]:
    """Every inode once, the root first; counts links."""
    found, seen, waiting = [root], {id(root)}, [root]
    root.links = 2
    while waiting:
        for child in (waiting.pop().children or {}).values():
            if id(child) in seen:
                child.links += 1
                continue
            seen.add(id(child))
            found.append(child)
            child.links = 1
            if child.children is not None:
                waiting.append(child)
                child.links = 2 + sum(one.is_folder for one in child.children.values())
    root.links = 2 + sum(one.is_folder for one in (root.children or {}).values())
    return found


def _parents(nodes: list[Node], root: Node) -> dict[int, int]:
    """By a folder's identity, its parent's place."""
    found = {id(root): root.place}
    for node in nodes:
        for child in (node.children or {}).values():
            if child.is_folder:
                found[id(child)] = node.place
    return found


def _place(nodes: list[Node]) -> int:
    """Give each its slot, none across a block's end if its tail is inside; the slot after all."""
    at = 1  # readdir takes inode 0 for a deleted entry
    per_block = BLOCK // _SLOT
    for node in nodes:
        inline = _is_inline(node)
        whole = _INODE + _xattrs_size(node) + (node.size if inline else 0)
        if at % per_block * _SLOT + (whole if inline else _INODE) > BLOCK:
            at = aligned(at, per_block)
        node.place = at
        at += aligned(whole, _SLOT) // _SLOT
    return at


def _size(node: Node) -> int:
    if node.children is not None:
        return _directory_size(node.children)
    return len(node.target) or node.size


def _is_inline(node: Node) -> bool:
    own = node.children is not None or bool(node.target)
    return own and _INODE + _xattrs_size(node) + node.size <= BLOCK


def _names(children: dict[bytes, Node]) -> list[bytes]:
    return sorted((*children, b".", b".."))


def _groups(names: list[bytes]) -> Iterator[list[bytes]]:
    """The names of each block of a directory."""
    group: list[bytes] = []
    used = 0
    for name in names:
        need = 12 + len(name)
        if used + need > BLOCK:
            yield group
            group, used = [], 0
        group.append(name)
        used += need
    yield group


def _directory_size(children: dict[bytes, Node]) -> int:
    *full, last = _groups(_names(children))
    return len(full) * BLOCK + sum(12 + len(name) for name in last)


def _directory(node: Node, parent: int) -> Iterator[bytes]:
    children = node.children or {}
    groups = list(_groups(_names(children)))
    for number, group in enumerate(groups, 1):
        offset = 12 * len(group)
        entries = bytearray()
        for name in group:
            place, kind = _entry(name, node, children, parent)
            entries += struct.pack("<QHBx", place, offset, kind)
            offset += len(name)
        entries += b"".join(group)
        yield bytes(entries) if number == len(groups) else bytes(entries).ljust(BLOCK, b"\0")


def _entry(name: bytes, node: Node, children: dict[bytes, Node], parent: int) -> tuple[int, int]:
    if name == b".":
        return node.place, _TYPES[stat.S_IFDIR]
    if name == b"..":
        return parent, _TYPES[stat.S_IFDIR]
    child = children[name]
    return child.place, _TYPES[stat.S_IFMT(child.mode)]


def _inode(node: Node, serial: int) -> bytes:
    layout = _FLAT_INLINE if _is_inline(node) else _FLAT_PLAIN
    seconds, nanoseconds = divmod(node.mtime, 1_000_000_000)
    xattrs = _xattrs(node)
    special = stat.S_ISCHR(node.mode) or stat.S_ISBLK(node.mode)
    head = struct.pack(
        "<HHHHQIIIIQII16x",
        _EXTENDED | layout << 1,
        (len(xattrs) - 12) // 4 + 1 if xattrs else 0,
        node.mode,
        0,
        node.size,
        node.device if special else node.block,
        serial,
        node.uid,
        node.gid,
        seconds,
        nanoseconds,
        node.links,
    )
    return head + xattrs


def _xattrs_size(node: Node) -> int:
    if not node.xattrs:
        return 0
    return 12 + sum(aligned(4 + len(_suffix(n)[1]) + len(v), 4) for n, v in node.xattrs)


def _xattrs(node: Node) -> bytes:
    if not node.xattrs:
        return b""
    found = bytearray(12)
    for name, value in node.xattrs:
        index, suffix = _suffix(name)
        found += struct.pack("<BBH", len(suffix), index, len(value)) + suffix + value
        found += bytes(-len(found) % 4)
    return bytes(found)


def _suffix(name: bytes) -> tuple[int, bytes]:
    for prefix, index in _PREFIXES:
        if name.startswith(prefix):
            return index, name.removeprefix(prefix)
    raise ValueError(name)


def superblock(inodes: Inodes, first: int, blocks: int) -> bytes:
    """``first``: the block where the inodes begin."""
    return struct.pack(
        "<IIIBBHQQIIII16s16sI44x",
        MAGIC,
        0,
        0,
        BLOCK.bit_length() - 1,
        0,
        inodes.root.place,
        len(inodes.nodes),
        0,
        0,
        blocks,
        first,
        0,
        bytes(16),
        bytes(16),
        0,
    )


def device_number(major: int, minor: int) -> int:
    """As the kernel's ``new_encode_dev``."""
    return (minor & 0xFF) | (major << 8) | ((minor & ~0xFF) << 12)


def aligned(size: int, unit: int) -> int:
    return -(-size // unit) * unit
