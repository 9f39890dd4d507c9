"""Recipes small enough for a test, and a host that mounts nothing."""

from __future__ import annotations

import errno
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, cast

from aenv.models.errors import NotFoundError
from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.node.host import Host, Mount, Mounts
from aenv.node.images import ImageStore
from aenv.node.images.recipes import Built, Recipe, Report, fingerprint

_MAGIC = struct.pack("<I", 0xE0F5E1E2)


class TinyRecipe(Recipe):
    """Writes a file that begins like an EROFS image. ``error``: what a build raises instead."""

    name: ClassVar[str] = "tiny"
    isolated: ClassVar[bool] = False

    def __init__(self, revision: str = "1") -> None:
        self.revision = revision
        self.error: Exception | None = None
        self.builds = 0
        self.gate = threading.Event()
        self.gate.set()

    def digest(self) -> str:
        return fingerprint("tiny", self.revision)

    def build(self, workspace: Path, report: Report) -> Built:
        self.builds += 1
        report(0.5, "half way")
        self.gate.wait(10)
        if self.error:
            raise self.error
        layer = workspace / "rootfs.erofs"
        layer.write_bytes(b"\0" * 1024 + _MAGIC + self.revision.encode() * 4096)
        return Built(layer, packages={"tiny": "1"})


class SlowRecipe(TinyRecipe):
    """As one that takes minutes: opening it does not wait."""

    isolated: ClassVar[bool] = True


@dataclass
class RememberedMounts(Mounts):
    """What would be mounted. ``error``: what the kernel answers instead."""

    mounted: dict[Path, Path] = field(default_factory=dict)
    error: OSError | None = None

    def image(self, source: Path, target: Path, *, kind: str = "erofs") -> None:
        if self.error:
            raise self.error
        if not source.is_file():
            raise OSError(errno.ENOENT, "no such image", str(source))
        self.mounted[target] = source

    def unmount(self, target: Path) -> bool:
        return self.mounted.pop(target, None) is not None

    def table(self) -> list[Mount]:
        return [Mount(str(s), t, "erofs", "ro") for t, s in self.mounted.items()]

    def overlay(
        self, lowers: Sequence[Path], upper: Path | None, work: Path | None, target: Path
    ) -> None:
        raise NotImplementedError

    def device(self, source: Path, target: Path, *, kind: str, options: str = "") -> None:
        raise NotImplementedError

    def bind(self, source: Path, target: Path, *, read_only: bool = True) -> None:
        raise NotImplementedError


class MountingHost:
    """Of a host only the mounts."""

    def __init__(self) -> None:
        self.mounts = RememberedMounts()


@dataclass
class Shop:
    """One host with its cache; ``store`` opens a server instance's view of it."""

    root: Path
    recipe: TinyRecipe
    host: MountingHost = field(default_factory=MountingHost)

    def folders(self, instance: str = "one") -> Folders:
        root = self.root
        return Folders(root / instance, root / "cache", root / "config", root / "run")

    def store(self, instance: str = "one", *, root: bool = True) -> ImageStore:
        return ImageStore(
            Settings(folders=self.folders(instance)),
            cast("Host", self.host) if root else None,
            names=(self.recipe.name,),
            recipe_of=self._recipe,
        )

    def _recipe(self, name: str, _: Folders) -> Recipe:
        if name != self.recipe.name:
            raise NotFoundError(f"no template {name!r}")
        return self.recipe

    def image(self) -> Path:
        [layer] = self.root.glob("cache/images/*/rootfs.erofs")
        return layer
