"""What a layer contains, in memory: nodes by name, with the overlay's marks for what it removes."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from aenv.models.errors import TemplateBuildError

WHITEOUT_MODE = stat.S_IFCHR
OPAQUE = (b"trusted.overlay.opaque", b"y")
MOST_ENTRIES = 1_000_000
_WHITEOUT, _OPAQUE_MARK, _AUFS = b".wh.", b".wh..wh..opq", b".wh..wh."


class HostileLayerError(TemplateBuildError):
    """A layer holds what no honest one does; the message names the entry."""

    code = "layer_refused"


@dataclass(slots=True, eq=False)
class Node:
    """An inode. ``mtime`` in nanoseconds; ``block`` where a file's ``size`` bytes begin;
    ``children`` of a folder. ``implied``: the layer only names what is below it.
    """

    mode: int
    uid: int = 0
    gid: int = 0
    mtime: int = 0
    size: int = 0
    block: int = 0
    device: int = 0
    target: bytes = b""
    xattrs: tuple[tuple[bytes, bytes], ...] = ()
    children: dict[bytes, Node] | None = None
    implied: bool = False
    links: int = field(default=0, repr=False)
    place: int = field(default=0, repr=False)

    @property
    def is_folder(self) -> bool:
        return self.children is not None

    @property
    def is_whiteout(self) -> bool:
        return stat.S_ISCHR(self.mode) and self.device == 0


def folder(mode: int = 0o755, *, implied: bool = False) -> Node:
    return Node(stat.S_IFDIR | mode, children={}, implied=implied)


class Tree:
    """One layer, or several applied one above the other (``begin`` before each further one).

    In the lowest of them marks of removal remain, as they may concern what lies below.
    """

    def __init__(self) -> None:
        self.root = folder(implied=True)
        self._count = 0
        self._fresh: set[int] = set()
        """Ids of nodes of the layer being applied: its own marks do not concern them."""

    def begin(self) -> None:
        self._fresh.clear()

    def put(self, path: Sequence[bytes], node: Node) -> None:
        """Add an entry; a later one of the same name wins, a folder keeps what it holds.

        Raises HostileLayerError.
        """
        if not path:
            self._redefine(self.root, node)
            return
        name = path[-1]
        if name.startswith(_AUFS):
            if name == _OPAQUE_MARK:
                self._make_opaque(self._parent(path))
            return
        parent = self._parent(path)
        if name.startswith(_WHITEOUT):
            self._white_out(parent, name.removeprefix(_WHITEOUT), path)
            return
        children = _children(parent)
        before = children.get(name)
        if before is not None and before.is_folder and node.is_folder:
            self._redefine(before, node)
            return
        if before is not None and before.is_whiteout and node.is_folder:
            node.xattrs = (*node.xattrs, OPAQUE)
        self._add(children, name, node)

    def find(self, path: Sequence[bytes]) -> Node | None:
        """Links are not followed."""
        node = self.root
        for name in path:
            found = node.children.get(name) if node.children is not None else None
            if found is None:
                return None
            node = found
        return node

    def folders(self) -> Iterator[tuple[bytes, Node]]:
        """All folders with their paths, parents first."""
        waiting = [(b"", self.root)]
        while waiting:
            path, node = waiting.pop()
            yield path, node
            for name, child in _children(node).items():
                if child.is_folder:
                    waiting.append((path + b"/" + name if path else name, child))

    def _parent(self, path: Sequence[bytes]) -> Node:
        node = self.root
        for depth, name in enumerate(path[:-1], 1):
            children = _children(node)
            found = children.get(name)
            if found is None or found.is_whiteout:
                made = folder(implied=True)
                if found is not None:
                    made.xattrs = (OPAQUE,)
                self._add(children, name, made)
                found = made
            if not found.is_folder:
                raise HostileLayerError(
                    f"the layer's entry {show(path)} lies below {show(path[:depth])}, "
                    "which is no folder"
                )
            node = found
        return node

    def _redefine(self, node: Node, by: Node) -> None:
        marks = tuple(one for one in node.xattrs if one == OPAQUE)
        node.mode, node.uid, node.gid, node.mtime = by.mode, by.uid, by.gid, by.mtime
        node.xattrs, node.implied = (*by.xattrs, *marks), False
        self._fresh.add(id(node))

    def _white_out(self, parent: Node, name: bytes, path: Sequence[bytes]) -> None:
        if name in (b"", b".", b".."):
            raise HostileLayerError(f"the layer's entry {show(path)} removes no file's name")
        children = _children(parent)
        before = children.get(name)
        if before is None or id(before) not in self._fresh:
            self._add(children, name, Node(WHITEOUT_MODE))
        elif before.is_folder:
            self._make_opaque(before)

    def _make_opaque(self, node: Node) -> None:
        """Hide what lower layers hold: those below this image file, and those applied before."""
        if OPAQUE not in node.xattrs:
            node.xattrs = (*node.xattrs, OPAQUE)
        children = _children(node)
        for name in [name for name, child in children.items() if id(child) not in self._fresh]:
            del children[name]

    def _add(self, children: dict[bytes, Node], name: bytes, node: Node) -> None:
        self._count += 1
        if self._count > MOST_ENTRIES:
            raise HostileLayerError(f"the layer has more than {MOST_ENTRIES} entries")
        children[name] = node
        self._fresh.add(id(node))


def show(path: Sequence[bytes]) -> str:
    return ascii(b"/".join(path)[:200].decode(errors="replace"))


def _children(node: Node) -> dict[bytes, Node]:
    assert node.children is not None
    return node.children
