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
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

from aenv.models.errors import InfrastructureError
from aenv.models.templates import TemplateInfo
from aenv.node.engine import Bind
from aenv.node.images import pins
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
    """What is known of an image. ``digest``: sha256 of the layer (a directory: of the recipe)."""

    name: str
    recipe: str
    layer: str
    digest: str
    size_bytes: int
    built_at: float
    reproducible: bool
    binds: tuple[Bind, ...] = ()
    packages: dict[str, str] = field(default_factory=dict)

    def info(self) -> TemplateInfo:
        return TemplateInfo(
            name=self.name,
            digest=self.digest,
            size_bytes=self.size_bytes,
            built_at=self.built_at,
            reproducible=self.reproducible,
        )


class Shelf:
    """The images of one folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, recipe_digest: str) -> Path:
        return self.root / recipe_digest[:32]

    def layer(self, record: Record) -> Path:
        return self.folder(record.recipe) / record.layer

    def find_digest(self, name: str, digest: str) -> Record | None:
        """The image of a template with exactly this content, current or not."""
        found = (_read(path) for path in self.root.glob(f"*/{RECORD}"))
        return next(
            (one for one in found if one and (one.name, one.digest) == (name, digest)), None
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

    def clear_workspaces(self, name: str) -> None:
        """Remove what killed builds left; only for the holder of the build lock."""
        for path in self.root.glob(f".{name}-*"):
            shutil.rmtree(path, ignore_errors=True)

    def seal(self, recipe: Recipe, recipe_digest: str, workspace: Path, built: Built) -> Record:
        """Put a finished image on the shelf."""
        is_file = built.layer.is_file()
        record = Record(
            name=recipe.name,
            recipe=recipe_digest,
            layer=built.layer.name,
            digest=sha256(built.layer) if is_file else recipe_digest,
            size_bytes=_size(built.layer),
            built_at=time.time(),
            reproducible=recipe.reproducible,
            binds=built.binds,
            packages=built.packages,
        )
        staged = workspace / "sealed"
        staged.mkdir()
        built.layer.rename(staged / built.layer.name)
        if is_file:
            (staged / built.layer.name).chmod(0o444)
            _fsync(staged / built.layer.name)
        _write_json(staged / RECORD, {"format": _FORMAT, **asdict(record)})
        target = self.folder(recipe_digest)
        shutil.rmtree(target, ignore_errors=True)
        staged.rename(target)
        _fsync(self.root)
        return record

    def prune(self, name: str, keep: int) -> None:
        """Remove all but the newest ``keep`` images of a template, and those that are needed."""
        found = [_read(path) for path in self.root.glob(f"*/{RECORD}")]
        records = [record for record in found if record and record.name == name]
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
        layer = self.layer(record)
        if layer.is_dir():
            return
        try:
            size = layer.stat().st_size
            with layer.open("rb") as file:
                file.seek(_SUPERBLOCK_OFFSET)
                magic = file.read(4)
        except OSError as error:
            raise CorruptImageError(f"{layer} cannot be read ({error.strerror})") from error
        if size != record.size_bytes:
            raise CorruptImageError(f"{layer} has {size} bytes instead of {record.size_bytes}")
        if len(magic) < 4 or struct.unpack("<I", magic)[0] != _EROFS_MAGIC:
            raise CorruptImageError(f"{layer} has no EROFS superblock")

    def check_fully(self, record: Record) -> None:
        """Every byte. Raises CorruptImageError."""
        self.check(record)
        layer = self.layer(record)
        if layer.is_file() and (found := sha256(layer)) != record.digest:
            raise CorruptImageError(f"{layer} has sha256 {found[:12]}…, not {record.digest[:12]}…")


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
        return Record(**raw, binds=binds)
    except (OSError, ValueError, KeyError, TypeError):
        return None


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
