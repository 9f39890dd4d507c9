"""The templates of a node: which there are, how far they are, and their root file systems, mounted.

An overlay mount keeps the file systems below it alive by itself, so an image may be unmounted or
deleted while sandboxes run on it; only new ones can no longer start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from aenv.models.errors import (
    CapabilityError,
    ConflictError,
    HostSetupError,
    NotFoundError,
    TemplateBuildError,
    TemplateNotReadyError,
)
from aenv.models.folders import Folders
from aenv.models.references import is_explicit
from aenv.models.registries import RegistryLogin
from aenv.models.settings import Settings
from aenv.models.templates import TemplateInfo, TemplateProgress, TemplateStatus
from aenv.node.engine import Bind, Rootfs
from aenv.node.host import Host
from aenv.node.images import builtin, pins, progress
from aenv.node.images.builds import Builds
from aenv.node.images.oci.names import Names
from aenv.node.images.progress import BuildState
from aenv.node.images.recipes import Recipe
from aenv.node.images.records import CorruptImageError, Record, Shelf

_RETRY_AFTER = 5.0
_INSTANT = 30.0
"""Seconds to wait for a recipe that is built on the spot."""

RecipeOf = Callable[[str, Folders], Recipe]


@dataclass(frozen=True, slots=True)
class Image:
    """A template's root file system, ready to boot from; its mount is shared, until ``close``."""

    info: TemplateInfo
    rootfs: Rootfs


class ImageStore:
    """``host`` mounts images; without one (no root) only directory images can be opened."""

    def __init__(
        self,
        settings: Settings,
        host: Host | None,
        *,
        names: tuple[str, ...] = builtin.NAMES,
        recipe_of: RecipeOf = builtin.recipe,
    ) -> None:
        self._folders = settings.folders
        self._host = host
        self._names = names
        self._recipe_of = recipe_of
        self._shared = Shelf(self._folders.cache / "images")
        self._images = Names(self._shared.root)
        self._own = Shelf(self._folders.instance_run / "images")
        self._mounts = self._folders.instance_run / "mounts"
        self._builds = Builds(self._folders, self._shelf_of)
        self._opening = asyncio.Lock()

    async def start(self) -> None:
        """Make what is instant, and unmount what no image stands behind any more."""
        await self.reap()
        for recipe in map(self._recipe, self._names):
            if not recipe.isolated:
                await self._builds.ensure(recipe, _INSTANT)

    async def close(self) -> None:
        """End builds and let go of the mounts; running sandboxes are not harmed."""
        await self._builds.close()
        for folder in await asyncio.to_thread(_folders_in, self._mounts):
            await asyncio.to_thread(self._unmount, folder)

    async def reap(self) -> None:
        """Unmount images that were deleted or replaced, and what killed builds of ours left."""
        await asyncio.to_thread(self._reap)

    async def list(self) -> list[TemplateInfo]:
        """The templates that can be started now."""
        names = [*self._names, *await asyncio.to_thread(self._images.all)]
        records = [await self._find(self._recipe(name)) for name in names]
        return [record.info() for record in records if record]

    async def progress(self, name: str) -> TemplateProgress:
        """Raises NotFoundError."""
        return await self._builds.progress(self._recipe(name))

    async def ensure(
        self,
        name: str,
        wait: float = 0,
        *,
        anew: bool = False,
        source: str | None = None,
        login: RegistryLogin | None = None,
    ) -> TemplateProgress:
        """Start or join the build and wait up to ``wait`` seconds; it may have ended with ERROR.
        ``anew``: ask what the name of an image means now. ``source``: take it from this host's
        files, see ``builtin.recipe``. ``login``: to its registry, instead of our user's.

        Raises NotFoundError.
        """
        recipe = builtin.recipe(name, self._folders, source) if source else self._recipe(name)
        anew = anew and recipe.moves
        return await self._builds.ensure(recipe, wait, anew=anew, login=login)

    async def follow(self, name: str, wait: float) -> TemplateProgress:
        """As :meth:`progress`, after up to ``wait`` seconds or the end of a build of ours."""
        recipe = self._recipe(name)
        await self._builds.wait(recipe, wait)
        return await self._builds.progress(recipe)

    async def open(self, name: str) -> Image:
        """Raises NotFoundError, TemplateNotReadyError, TemplateBuildError, CapabilityError."""
        recipe = self._recipe(name)
        record = await self._find(recipe)
        if record is None and not recipe.isolated:
            await self._builds.ensure(recipe, _INSTANT)
            record = await self._find(recipe)
        if record is None:
            raise _not_ready(await self._builds.progress(recipe))
        try:
            return await self._mounted(self._shelf_of(recipe), record)
        except CorruptImageError as error:
            raise await self._rebuild(recipe, record, error) from error

    async def open_exact(self, name: str, digest: str) -> Image | None:
        """The image with this content, current or not; None if it is gone.

        Raises NotFoundError, CapabilityError, CorruptImageError.
        """
        shelf = self._shelf_of(self._recipe(name))
        record = await asyncio.to_thread(shelf.find_digest, name, digest)
        return None if record is None else await self._mounted(shelf, record)

    async def pin(self, name: str, digest: str, holder: Path) -> None:
        """Keep the image with this content for as long as the path ``holder`` exists."""
        shelf = self._shelf_of(self._recipe(name))
        await asyncio.to_thread(pins.pin, shelf.root, digest, holder)

    def unpin(self, holder: Path) -> None:
        """It is gone. Blocking, for microseconds."""
        for shelf in (self._shared, self._own):
            pins.release(shelf.root, holder)

    async def _mounted(self, shelf: Shelf, record: Record) -> Image:
        async with self._opening:
            lowers = await asyncio.to_thread(self._lowers, shelf, record)
        binds = tuple(_placed(bind, shelf.folder(record.recipe)) for bind in record.binds)
        return Image(record.info(), Rootfs(lowers, binds))

    async def verify(self, name: str) -> None:
        """Read every byte. Raises NotFoundError, CorruptImageError (the image is gone then)."""
        recipe = self._recipe(name)
        record = await self._existing(recipe)
        try:
            await asyncio.to_thread(self._shelf_of(recipe).check_fully, record)
        except CorruptImageError:
            await asyncio.to_thread(self._discard, recipe, record, damaged=True)
            raise

    async def delete(self, name: str) -> None:
        """Free its files. Raises NotFoundError, ConflictError while it is built or needed."""
        recipe = self._recipe(name)
        if (await self._builds.progress(recipe)).status is TemplateStatus.BUILDING:
            raise ConflictError(
                f"template {name} is being built; wait for it or end the build first"
            )
        record = await self._existing(recipe)
        shelf = self._shelf_of(recipe)
        holders = await asyncio.to_thread(pins.needed_by, shelf.root, record.digest)
        if holders and not await asyncio.to_thread(shelf.has_twin, record):
            raise ConflictError(
                f"template {name} is needed by {len(holders)} sandboxes or snapshots on this host; "
                "delete them first"
            )
        await asyncio.to_thread(self._discard, recipe, record)

    def _recipe(self, name: str) -> Recipe:
        return self._recipe_of(name, self._folders)

    def _shelf_of(self, recipe: Recipe) -> Shelf:
        return self._shared if recipe.host_wide else self._own

    async def _find(self, recipe: Recipe) -> Record | None:
        return await asyncio.to_thread(self._shelf_of(recipe).find, recipe)

    async def _existing(self, recipe: Recipe) -> Record:
        record = await self._find(recipe)
        if record is None:
            raise NotFoundError(f"template {recipe.name} has not been built")
        return record

    async def _rebuild(
        self, recipe: Recipe, record: Record, error: CorruptImageError
    ) -> TemplateNotReadyError:
        await asyncio.to_thread(self._discard, recipe, record, damaged=True)
        await self._builds.ensure(recipe, wait=0)
        return TemplateNotReadyError(
            f"the image of template {recipe.name} was damaged and is being built anew: {error}",
            retry_after=_RETRY_AFTER,
        )

    def _lowers(self, shelf: Shelf, record: Record) -> tuple[Path, ...]:
        """Mounted, topmost first."""
        if record.layer and shelf.layer(record).is_dir():
            return (shelf.layer(record),)
        if self._host is None:
            raise CapabilityError(
                f"template {record.name} is a disk image; mounting it needs root on Linux"
            )
        files = [shelf.layers.image(key) for key in record.layers] or [shelf.layer(record)]
        targets = tuple(self._mounts / name for name in _mount_names(record))
        missing = [
            pair
            for pair in zip(files, targets, strict=True)
            if self._host.mounts.find(pair[1]) is None
        ]
        if missing:
            shelf.check(record)
            self._mount(missing, shelf, record)
        return targets

    def _mount(self, missing: Sequence[tuple[Path, Path]], shelf: Shelf, record: Record) -> None:
        assert self._host is not None
        try:
            for file, target in missing:
                target.mkdir(parents=True, exist_ok=True)
                self._host.mounts.image(file, target)
        except OSError as error:
            shelf.check_fully(record)
            raise HostSetupError(
                f"this host cannot mount the image of template {record.name}: {error}; "
                "see: aenv doctor"
            ) from error

    def _discard(self, recipe: Recipe, record: Record, *, damaged: bool = False) -> None:
        shelf = self._shelf_of(recipe)
        shelf.remove(record)
        BuildState(shelf.root, recipe.name, recipe.key).clear()
        if recipe.moves:
            recipe.forget()
            shelf.prune(recipe.name, keep=0)
        self._unmount_all_but(shelf.records(), _mount_names(record))
        if damaged:
            shelf.drop_damaged(record)
        shelf.sweep()

    def _unmount(self, target: Path) -> None:
        if self._host is not None and target.is_dir():
            self._host.mounts.unmount(target)
            target.rmdir()

    def _reap(self) -> None:
        for name in (*self._names, *self._images.all()):
            self._clear_workspaces(self._recipe(name))
        self._shared.sweep()
        progress.tidy(self._shared.root)
        names = (*self._names, *self._images.all())
        recipes = [self._recipe(name) for name in names]
        records = [self._shelf_of(recipe).find(recipe) for recipe in recipes]
        mounted = tuple(folder.name for folder in _folders_in(self._mounts))
        self._unmount_all_but([record for record in records if record], mounted)

    def _unmount_all_but(self, needed: Sequence[Record], names: Sequence[str]) -> None:
        kept = {name for record in needed for name in _mount_names(record)}
        for name in names:
            if name not in kept:
                self._unmount(self._mounts / name)

    def _clear_workspaces(self, recipe: Recipe) -> None:
        shelf = self._shelf_of(recipe)
        with BuildState(shelf.root, recipe.name, recipe.key).hold() as mine:
            if mine:
                shelf.clear_workspaces(recipe.key)
                if recipe.moves:
                    shelf.prune(recipe.name, keep=recipe.keep)


def _mount_names(record: Record) -> tuple[str, ...]:
    """Short, as all of them have to fit into an overlay's mount options."""
    return tuple(key[:20] for key in record.layers) or (record.digest[:32],)


def _not_ready(progress: TemplateProgress) -> TemplateNotReadyError | TemplateBuildError:
    name = progress.name
    if progress.status is TemplateStatus.ERROR:
        return TemplateBuildError(f"the last build of template {name} failed: {progress.error}")
    state = (
        f"is being built ({progress.fraction:.0%}, {progress.step})"
        if progress.status is TemplateStatus.BUILDING
        else f"has not been built; run: {_remedy(name)}"
    )
    return TemplateNotReadyError(f"template {name} {state}", retry_after=_RETRY_AFTER)


def _remedy(name: str) -> str:
    return f"aenv pull {name}" if is_explicit(name) else f"aenv template build {name}"


def _placed(bind: Bind, folder: Path) -> Bind:
    return bind if bind.source.is_absolute() else replace(bind, source=folder / bind.source)


def _folders_in(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
