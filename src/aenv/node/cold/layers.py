"""The sealed layers on this host, in the data folder: they hold what sandboxes wrote.

A layer is named by its content. It stays while a snapshot or a sandbox here needs it, and is
mounted while something may start from it.
"""

from __future__ import annotations

import asyncio
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkdtemp

from aenv.models.errors import CapabilityError, EngineError, SnapshotDamagedError
from aenv.models.folders import Folders
from aenv.node.host import Host
from aenv.node.images import pins
from aenv.node.images.layers import IMAGE, KEY_LENGTH, LayerShelf

_MOUNT_NAME = 16


def key_of(digest: str) -> str:
    """Of a sealed layer, by the sha256 of its bytes."""
    return digest[:KEY_LENGTH]


class SealedLayers:
    """``host`` None: there is nobody to mount them."""

    def __init__(self, folders: Folders, host: Host | None) -> None:
        self._shelf = LayerShelf(folders.data / "sealed")
        self._mounts = folders.instance_run / "sealed"
        self._workshop = folders.data / "sealed" / "new"
        self._host = host
        self._opening = asyncio.Lock()
        self._claimed: Counter[str] = Counter()

    async def open(self) -> None:
        """Remove what was never finished, and what nothing needs."""
        await asyncio.to_thread(shutil.rmtree, self._workshop, ignore_errors=True)
        await self.sweep()

    async def close(self) -> None:
        """Let go of the mounts; running sandboxes are not harmed."""
        await asyncio.to_thread(self._unmount_all_but, set())

    def image(self, key: str) -> Path:
        return self._shelf.image(key)

    def has(self, key: str) -> bool:
        return self._shelf.find(key) is not None

    @contextmanager
    def workshop(self) -> Iterator[Path]:
        """A folder for layers that are being made, gone afterwards."""
        self._workshop.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._workshop.parent.chmod(0o700)
        folder = Path(mkdtemp(dir=self._workshop))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    @contextmanager
    def claimed(self, keys: Sequence[str]) -> Iterator[None]:
        """Nobody removes them meanwhile."""
        self._claimed.update(keys)
        try:
            yield
        finally:
            self._claimed.subtract(keys)

    async def add(self, file: Path, digest: str, holder: Path) -> str:
        """Take ``file`` over as the layer of that digest; its key. It stays while ``holder`` does,
        a path.
        """
        key = key_of(digest)

        def work(staged: Path) -> str:
            file.rename(staged / IMAGE)
            return digest

        await asyncio.to_thread(self._shelf.make, key, holder, work)
        return key

    async def pin(self, keys: Sequence[str], holder: Path) -> None:
        """They stay while ``holder`` does."""
        for key in keys:
            await asyncio.to_thread(pins.pin, self._shelf.root, key, holder)

    async def mounted(self, keys: Sequence[str]) -> tuple[Path, ...]:
        """Their mounts, in the same order. Raises SnapshotDamagedError when one is gone."""
        if not keys:
            return ()
        async with self._opening:
            return await asyncio.to_thread(lambda: tuple(self._mounted(key) for key in keys))

    async def sweep(self) -> None:
        """Remove what neither a snapshot nor a sandbox needs."""
        async with self._opening:
            await asyncio.to_thread(self._sweep)

    def _mounted(self, key: str) -> Path:
        if self._host is None:
            raise CapabilityError("starting from a sealed disk needs root on Linux, to mount it")
        target = self._mounts / key[:_MOUNT_NAME]
        if self._host.mounts.find(target) is not None:
            return target
        if not self.has(key):
            raise SnapshotDamagedError(
                f"the sealed layer {key} below the disk is gone from {self._shelf.root}: put it "
                "back from a copy of the data folder"
            )
        target.mkdir(parents=True, exist_ok=True)
        try:
            self._host.mounts.image(self._shelf.image(key), target)
        except OSError as error:
            raise EngineError(f"the sealed layer {key} cannot be mounted: {error}") from error
        return target

    def _sweep(self) -> None:
        if not self._shelf.root.is_dir():
            return
        names = [path.name for path in self._shelf.root.iterdir() if len(path.name) == KEY_LENGTH]
        needed = {
            key for key in names if self._claimed[key] or pins.needed_by(self._shelf.root, key)
        }
        self._unmount_all_but({key[:_MOUNT_NAME] for key in needed})
        self._shelf.sweep(lambda: needed)

    def _unmount_all_but(self, kept: set[str]) -> None:
        if self._host is None or not self._mounts.is_dir():
            return
        for target in self._mounts.iterdir():
            if target.name not in kept:
                self._host.mounts.unmount(target)
                with suppress(OSError):
                    target.rmdir()
