"""The read-only layers below disks: those of templates, and sealed ones above them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

from aenv.node.cold.layers import SealedLayers
from aenv.node.engine import Rootfs


class Pins(Protocol):
    """The part of ``images.ImageStore`` that keeps images."""

    async def pin(self, name: str, digest: str, holder: Path) -> None: ...


class Lowers:
    def __init__(self, images: Pins, sealed: SealedLayers) -> None:
        self._images = images
        self._sealed = sealed

    async def pin(self, name: str, digest: str, layers: Sequence[str], holder: Path) -> None:
        """Keep a template's image and sealed layers for as long as the path ``holder`` exists."""
        await self._images.pin(name, digest, holder)
        await self._sealed.pin(layers, holder)

    async def over(self, rootfs: Rootfs, layers: Sequence[str]) -> Rootfs:
        """With sealed layers above, mounted. Raises SnapshotDamagedError, EngineError."""
        if not layers:
            return rootfs
        return replace(rootfs, lowers=(*await self._sealed.mounted(layers), *rootfs.lowers))
