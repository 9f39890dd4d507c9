"""Layers of images: ``<shelf>/layers/<key>/{layer.erofs,folders.json,record.json}``, made once.

A layer stays while a record names it, or while a build needs it (a pin, see ``pins``). Whoever
makes, claims or removes one holds its lock, so that nobody loses a layer he has just seen.
Blocking.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import mkdtemp

from aenv.node.images import pins

KEY_LENGTH = 32
IMAGE, FOLDERS = "layer.erofs", "folders.json"
_RECORD = "record.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Layer:
    """``key``: of what it was made from, and by which converter. ``digest``: of its bytes."""

    key: str
    digest: str
    size_bytes: int
    made_at: float


class LayerShelf:
    """The layers of one shelf of images."""

    def __init__(self, images: Path) -> None:
        self.root = images / "layers"

    def image(self, key: str) -> Path:
        return self.root / key / IMAGE

    def folders(self, key: str) -> Path:
        return self.root / key / FOLDERS

    def find(self, key: str) -> Layer | None:
        try:
            raw = json.loads((self.root / key / _RECORD).read_text())
            if raw.pop("format") != _FORMAT:
                return None
            return Layer(**raw)
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def claim(self, key: str, holder: Path) -> bool:
        """Whether it is there; it then stays while the path ``holder`` exists."""
        with self._lock(key):
            found = self.find(key) is not None
            if found:
                pins.pin(self.root, key, holder)
            return found

    def make(self, key: str, holder: Path, work: Callable[[Path], str]) -> Layer:
        """As ``work`` makes it, unless it is there: it fills a folder with the files and returns
        the image's sha256. Others who want the same wait here.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with self._lock(key):
            found = self.find(key)
            if found is None:
                found = self._make(key, work)
            pins.pin(self.root, key, holder)
            return found

    def sweep(self, needed: Callable[[], set[str]]) -> None:
        """Remove what no record names and no build claims; what is in work is left alone."""
        pins.sweep(self.root)
        for key in sorted(self._keys() - needed()):
            with self._lock(key, wait=False) as mine:
                if mine and key not in needed() and not pins.needed_by(self.root, key):
                    self._remove(key)

    def usage(self, keys: set[str]) -> int:
        """Bytes of these layers together."""
        found = (self.find(key) for key in keys)
        return sum(layer.size_bytes for layer in found if layer)

    def remove(self, key: str) -> None:
        """Whoever needs it: for a damaged one, which has to be made anew."""
        with self._lock(key):
            self._remove(key)

    def _make(self, key: str, work: Callable[[Path], str]) -> Layer:
        for path in self.root.glob(f".{key}-*"):
            shutil.rmtree(path, ignore_errors=True)
        staged = Path(mkdtemp(prefix=f".{key}-", dir=self.root))
        try:
            digest = work(staged)
            size = (staged / IMAGE).stat().st_size
            layer = Layer(key, digest, size, time.time())
            (staged / IMAGE).chmod(0o444)
            _write(staged / _RECORD, json.dumps({"format": _FORMAT, **asdict(layer)}))
            staged.chmod(0o755)
            _fsync(staged)
            shutil.rmtree(self.root / key, ignore_errors=True)
            staged.rename(self.root / key)
            _fsync(self.root)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        return layer

    def _remove(self, key: str) -> None:
        (self.root / key / _RECORD).unlink(missing_ok=True)
        for path in (self.root / key, *self.root.glob(f".{key}-*")):
            shutil.rmtree(path, ignore_errors=True)

    def _keys(self) -> set[str]:
        """Of whole layers, and of what a killed build left of one."""
        if not self.root.is_dir():
            return set()
        names = {path.name for path in self.root.iterdir() if path.is_dir()}
        keys = {name.removeprefix(".").partition("-")[0] for name in names}
        return {key for key in keys if len(key) == KEY_LENGTH}

    @contextmanager
    def _lock(self, key: str, *, wait: bool = True) -> Iterator[bool]:
        folder = self.root / "locks"
        folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(folder / key, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            yield True
        except BlockingIOError:
            yield False
        finally:
            os.close(descriptor)


def _write(path: Path, text: str) -> None:
    with path.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
