"""The image's own uppermost layer: what its layers say together, but none of them alone.

A layer may hold ``home/ann/file`` and no entry for ``home/ann``; an overlay would show the folder
as that layer has it, with nobody's owner and mode. And a login shell forgets the image's PATH.
"""

from __future__ import annotations

import stat
from collections.abc import Sequence
from pathlib import Path

from aenv.node.images.layers import LayerShelf
from aenv.node.images.oci.conversions import VERSION, Folder, read_folders, write_folders
from aenv.node.images.oci.imagefiles import ImageFile
from aenv.node.images.oci.trees import Node, Tree
from aenv.node.images.recipes import fingerprint
from aenv.node.images.records import sha256

_PLAIN = Folder(0o755, 0, 0, 0, implied=True, opaque=False)
_PROFILE = b"etc/profile.d"
_PATH_SCRIPT = b"zz-image-path.sh"
_LOGIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def top(shelf: LayerShelf, keys: Sequence[str], path: str | None, holder: Path) -> str | None:
    """The layer to put above ``keys`` (lowest first); None when there is nothing to say.

    ``path``: the PATH of the image's environment.
    """
    whole, mended = _merge([read_folders(shelf.folders(key)) for key in keys])
    script = _script(path) if path not in (None, _LOGIN_PATH) and b"etc" in whole else b""
    wanted = {name: whole[name] for name in mended}
    if script:
        wanted[b"etc"] = whole[b"etc"]
        wanted[_PROFILE] = whole.get(_PROFILE, _PLAIN)
    if not wanted:
        return None
    for name in list(wanted):
        while name := name.rpartition(b"/")[0]:
            wanted[name] = whole.get(name, _PLAIN)
    wanted[b""] = whole.get(b"", _PLAIN)
    key = fingerprint("top", VERSION, repr(sorted(wanted.items())), script)[:32]
    shelf.make(key, holder, lambda target: _write(target, wanted, script))
    return key


def _merge(layers: Sequence[dict[bytes, Folder]]) -> tuple[dict[bytes, Folder], set[bytes]]:
    """Every folder as the layers together have it, and those that the uppermost one that has them
    shows otherwise.
    """
    whole: dict[bytes, Folder] = {}
    mended: set[bytes] = set()
    for layer in layers:
        for name, folder in layer.items():
            if not folder.implied or folder.opaque or name not in whole:
                whole[name] = folder
                mended.discard(name)
            elif _shown(whole[name]) != _shown(folder):
                mended.add(name)
    return whole, mended


def _shown(folder: Folder) -> tuple[int, int, int]:
    return folder.mode, folder.uid, folder.gid


def _script(path: str | None) -> bytes:
    quoted = "'" + str(path).replace("'", "'\\''") + "'"
    why = "# The PATH of the image, which /etc/profile has set anew."
    return f"{why}\nexport PATH={quoted}\n".encode()


def _write(target: Path, wanted: dict[bytes, Folder], script: bytes) -> str:
    tree = Tree()
    tree.begin()
    image = ImageFile(target / "layer.erofs")
    try:
        for name, folder in sorted(wanted.items()):
            node = Node(
                stat.S_IFDIR | folder.mode, folder.uid, folder.gid, folder.mtime, children={}
            )
            tree.put(tuple(part for part in name.split(b"/") if part), node)
        if script:
            rest = bytearray(script)

            def read(size: int) -> bytes:
                part = bytes(rest[:size])
                del rest[:size]
                return part

            node = Node(stat.S_IFREG | 0o644, size=len(script))
            node.block = image.append(read, len(script))
            tree.put((*_PROFILE.split(b"/"), _PATH_SCRIPT), node)
        image.finish(tree.root)
    finally:
        image.close()
    write_folders(tree, target / "folders.json")
    return sha256(target / "layer.erofs")
