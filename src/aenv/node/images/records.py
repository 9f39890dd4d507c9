"""A shelf of images: ``<shelf>/<recipe digest>/{record.json,rootfs.erofs}``, whole or absent.

An image is made in a workspace beside its place, sealed (fsync, checksum, record) and renamed into
it, so whoever sees a record sees a complete image.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import struct
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from aenv.models.errors import InfrastructureError
from aenv.models.templates import ImageFacts, TemplateInfo
from aenv.node.engine import Bind
from aenv.node.images import pins
from aenv.node.images.layers import LayerShelf
from aenv.node.images.recipes import Built, Recipe

RECORD = "record.json"
_FORMAT = 1
_EROFS_MAGIC = 0xE0F5E1E2
_SUPERBLOCK_OFFSET = 1024


class CorruptImageError(InfrastructureError):
    """The image's bytes are not those its record describes; it has to be built again."""

    code = "image_corrupt"


@dataclass(frozen=True, slots=True)
class Record:
    """What is known of an image. ``digest``: sha256 of the layer (a directory: of the recipe; an
    OCI image: of its manifest). ``layers``: keys on the shelf of layers, topmost first, of an image
    that has no ``layer`` of its own.
    """

    name: str
    recipe: str
    layer: str
    digest: str
    size_bytes: int
    built_at: float
    reproducible: bool
    binds: tuple[Bind, ...] = ()
    packages: dict[str, str] = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    facts: ImageFacts | None = None

    def info(self) -> TemplateInfo:
        plain = TemplateInfo(
            name=self.name,
            digest=self.digest,
            size_bytes=self.size_bytes,
            built_at=self.built_at,
            reproducible=self.reproducible,
        )
        if self.facts is None:
            return plain
        return replace(
            plain,
            default_user=self.facts.user,
            workdir=self.facts.workdir,
            env=dict(self.facts.env),
            image=self.facts,
        )


class Shelf:
    """The images of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layers = LayerShelf(root)

    def folder(self, recipe_digest: str) -> Path:
        return self.root / recipe_digest[:32]

    def layer(self, record: Record) -> Path:
        return self.folder(record.recipe) / record.layer

    def find_digest(self, name: str, digest: str) -> Record | None:
        """The image with exactly this content, current or not: of this name if there is one."""
        found = [one for one in self.records() if one.digest == digest]
        return next((one for one in found if one.name == name), found[0] if found else None)

    def has_twin(self, record: Record) -> bool:
        """Whether the same content is there under another name, too."""
        return any(
            one.digest == record.digest and one.name != record.name for one in self.records()
        )

    def find(self, recipe: Recipe) -> Record | None:
        digest = recipe.digest()
        record = _read(self.folder(digest) / RECORD)
        return record if record and (record.name, record.recipe) == (recipe.name, digest) else None

    @contextmanager
    def workspace(self, name: str) -> Iterator[Path]:
        """A scratch folder on the shelf's own file system; gone afterwards."""
        self.root.mkdir(parents=True, exist_ok=True)
        path = Path(mkdtemp(prefix=f".{name}-", dir=self.root))
        try:
            yield path
        finally:
            shutil.rmtree(path, ignore_errors=True)
            pins.release(self.layers.root, path)

    def clear_workspaces(self, name: str) -> None:
        """Remove what killed builds left; only for the holder of the build lock."""
        for path in self.root.glob(f".{name}-*"):
            shutil.rmtree(path, ignore_errors=True)

    def seal(self, recipe: Recipe, recipe_digest: str, workspace: Path, built: Built) -> Record:
        """Put a finished image on the shelf."""
        staged = workspace / "sealed"
        staged.mkdir()
        layer = _moved(built.layer, staged) if built.layer else None
        record = Record(
            name=recipe.name,
            recipe=recipe_digest,
            layer=layer.name if layer else "",
            digest=built.digest or (sha256(layer) if layer and layer.is_file() else recipe_digest),
            size_bytes=_size(layer) if layer else self.layers.usage(set(built.layers)),
            built_at=time.time(),
            reproducible=recipe.reproducible,
            binds=built.binds,
            packages=built.packages,
            layers=built.layers,
            facts=built.facts,
        )
        _write_json(staged / RECORD, {"format": _FORMAT, **asdict(record)})
        target = self.folder(recipe_digest)
        shutil.rmtree(target, ignore_errors=True)
        staged.rename(target)
        _fsync(self.root)
        return record

    def records(self) -> list[Record]:
        """All images, current or not."""
        found = (_read(path) for path in self.root.glob(f"*/{RECORD}"))
        return [record for record in found if record]

    def sweep(self) -> None:
        """Free the layers that belong to no image any more, and forget who needed one once."""
        pins.sweep(self.root)
        self.layers.sweep(lambda: {key for record in self.records() for key in record.layers})

    def drop_damaged(self, record: Record) -> None:
        """Remove the layers of an image that are not what they should be; whoever else has them
        finds them gone, and makes them anew.
        """
        for key in record.layers:
            layer = self.layers.find(key)
            if layer is None or not _is_whole(self.layers.image(key), layer.digest):
                self.layers.remove(key)

    def prune(self, name: str, keep: int) -> None:
        """Remove all but the newest ``keep`` images of a template, and those that are needed."""
        records = [record for record in self.records() if record.name == name]
        records.sort(key=lambda record: record.built_at, reverse=True)
        for record in records[keep:]:
            if not pins.needed_by(self.root, record.digest):
                self.remove(record)

    def remove(self, record: Record) -> None:
        """Take an image off the shelf. Mounts of it stay valid: they hold the file."""
        folder = self.folder(record.recipe)
        (folder / RECORD).unlink(missing_ok=True)
        shutil.rmtree(folder, ignore_errors=True)

    def check(self, record: Record) -> None:
        """The cheap check before a first mount: size and superblock. Raises CorruptImageError."""
        for path, size, _ in self._files(record):
            _check_file(path, size)

    def check_fully(self, record: Record) -> None:
        """Every byte. Raises CorruptImageError."""
        self.check(record)
        for path, _, digest in self._files(record):
            if (found := sha256(path)) != digest:
                raise CorruptImageError(f"{path} has sha256 {found[:12]}…, not {digest[:12]}…")

    def _files(self, record: Record) -> Iterator[tuple[Path, int, str]]:
        """The EROFS files of an image with their sizes and sha256. Raises CorruptImageError."""
        if record.layer and self.layer(record).is_dir():
            return
        if record.layer:
            yield self.layer(record), record.size_bytes, record.digest
        for key in record.layers:
            layer = self.layers.find(key)
            if layer is None:
                raise CorruptImageError(f"the layer {key[:12]} of {record.name} is gone")
            yield self.layers.image(key), layer.size_bytes, layer.digest


def _check_file(path: Path, size: int) -> None:
    try:
        found = path.stat().st_size
        with path.open("rb") as file:
            file.seek(_SUPERBLOCK_OFFSET)
            magic = file.read(4)
    except OSError as error:
        raise CorruptImageError(f"{path} cannot be read ({error.strerror})") from error
    if found != size:
        raise CorruptImageError(f"{path} has {found} bytes instead of {size}")
    if len(magic) < 4 or struct.unpack("<I", magic)[0] != _EROFS_MAGIC:
        raise CorruptImageError(f"{path} has no EROFS superblock")


def _is_whole(path: Path, digest: str) -> bool:
    try:
        return sha256(path) == digest
    except OSError:
        return False


def _moved(layer: Path, folder: Path) -> Path:
    """A finished image file or folder in its place, the file durable."""
    target = layer.rename(folder / layer.name)
    if target.is_file():
        target.chmod(0o444)
        _fsync(target)
    return target


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_atomically(path: Path, value: dict[str, Any]) -> None:
    """Readers see the old value or the new one, never a part of it."""
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    _write_json(scratch, value)
    scratch.rename(path)


def _read(path: Path) -> Record | None:
    try:
        raw = json.loads(path.read_text())
        if raw.pop("format") != _FORMAT:
            return None
        binds = tuple(
            Bind(Path(bind["source"]), bind["target"], bind["read_only"])
            for bind in raw.pop("binds")
        )
        facts = raw.pop("facts", None)
        layers = tuple(raw.pop("layers", ()))
        return Record(**raw, binds=binds, layers=layers, facts=_facts(facts))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _facts(raw: dict[str, Any] | None) -> ImageFacts | None:
    if raw is None:
        return None
    lists = {name: tuple(raw[name]) for name in ("entrypoint", "cmd", "ports")}
    return ImageFacts(**{**raw, **lists})


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with path.open("w") as file:
        json.dump(value, file, indent=1, default=str)
        file.flush()
        os.fsync(file.fileno())


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _size(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    return sum(entry.lstat().st_size for entry in path.rglob("*") if entry.is_file())
