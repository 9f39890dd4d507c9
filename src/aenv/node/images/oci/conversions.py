"""From the archives of layers to one EROFS image and a list of its folders. Blocking."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import zstandard

from aenv.node.images.layers import FOLDERS, IMAGE
from aenv.node.images.oci import tars
from aenv.node.images.oci.imagefiles import ImageFile
from aenv.node.images.oci.manifests import BadImageError
from aenv.node.images.oci.trees import OPAQUE, HostileLayerError, Tree

VERSION = "1"
"""Raise it when the same archive becomes another image."""
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_SKIPPABLE = b"\x2a\x4d\x18"
_WINDOW = 128 << 20
_BUFFER = 1 << 20


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that a layer has. ``implied``: only because of what is in it, so a lower layer's
    owner and mode hold. ``opaque``: nothing of lower layers shows in it.
    """

    mode: int
    uid: int
    gid: int
    mtime: int
    implied: bool
    opaque: bool


def convert(archives: Sequence[tuple[Path, str]], target: Path) -> str:
    """Apply archives, lowest first, each with the sha256 (hex) of what it unpacks to. Fills
    ``target`` with the image and its list of folders, and returns the image's sha256.

    Raises HostileLayerError, BadImageError, DiskFullError.
    """
    tree = Tree()
    image = ImageFile(target / IMAGE)
    try:
        for path, diff_id in archives:
            tree.begin()
            _apply(path, diff_id, tree, image)
        image.finish(tree.root)
    finally:
        image.close()
    write_folders(tree, target / FOLDERS)
    with (target / IMAGE).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_folders(tree: Tree, path: Path) -> None:
    found = [
        (
            name.decode("latin-1"),
            n.mode & 0o7777,
            n.uid,
            n.gid,
            n.mtime,
            n.implied,
            _opaque(n.xattrs),
        )
        for name, n in tree.folders()
    ]
    path.write_text(json.dumps(found))


def read_folders(path: Path) -> dict[bytes, Folder]:
    return {name.encode("latin-1"): Folder(*rest) for name, *rest in json.loads(path.read_text())}


def _opaque(xattrs: tuple[tuple[bytes, bytes], ...]) -> bool:
    return OPAQUE in xattrs


def _apply(path: Path, diff_id: str, tree: Tree, image: ImageFile) -> None:
    total = hashlib.sha256()
    try:
        with _opened(path) as stream:

            def read(size: int) -> bytes:
                found = stream.read(size)
                total.update(found)
                return found

            tars.read(read, tree, image)
    except (zlib.error, gzip.BadGzipFile, EOFError, zstandard.ZstdError) as error:
        raise HostileLayerError(f"the layer {diff_id[:12]}… cannot be unpacked: {error}") from error
    if total.hexdigest() != diff_id:
        raise BadImageError(
            f"a layer unpacks to {total.hexdigest()[:12]}…, its image's configuration names "
            f"{diff_id[:12]}…"
        )


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """The archive behind whatever compression it has, by its first bytes."""
    with ExitStack() as stack:
        file: BinaryIO = stack.enter_context(path.open("rb"))
        magic = file.read(4)
        file.seek(0)
        if magic.startswith(_GZIP):
            yield io.BufferedReader(gzip.GzipFile(fileobj=file), _BUFFER)
        elif magic == _ZSTD or magic[1:] == _SKIPPABLE:
            unpacker = zstandard.ZstdDecompressor(max_window_size=_WINDOW)
            plain = stack.enter_context(unpacker.stream_reader(file, read_across_frames=True))
            yield io.BufferedReader(plain, _BUFFER)
        else:
            yield file
