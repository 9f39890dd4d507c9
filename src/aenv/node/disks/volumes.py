"""Volumes in a pool of disks: each a subvolume with a quota of its own (a plain folder where there
is no btrfs) beside those of sandboxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from aenv.models.errors import (
    AenvError,
    ConflictError,
    DiskFullError,
    EngineError,
    SnapshotDamagedError,
)
from aenv.models.volumes import VolumeMount, VolumeUse
from aenv.node.disks.overlays import pool_is_full
from aenv.node.disks.removals import remove_tree
from aenv.node.disks.stores import MIB, VOLUMES, Store
from aenv.node.volumes.store import VolumeFolder, VolumeStore, name_of

_SMALLEST_ROOM = 64 * MIB
_OWNER = 1000
"""The user that commands run as in every template."""


class PoolVolumes(VolumeStore):
    """``store``: the pool's, once it is started."""

    def __init__(self, store: Callable[[], Store]) -> None:
        self._current = store

    async def make(self, volume_id: str, size_mb: int) -> None:
        await asyncio.to_thread(self._make, volume_id, size_mb)

    async def drop(self, volume_id: str) -> None:
        with _told(f"The volume {volume_id} cannot be deleted"):
            await asyncio.to_thread(self._store.remove, f"{VOLUMES}/{volume_id}")

    async def drop_of(self, sandbox_id: str) -> None:
        with _told(f"The volumes of sandbox {sandbox_id} cannot be deleted"):
            await asyncio.to_thread(self._drop_of, sandbox_id)

    async def reap(self, keep: Collection[str]) -> list[str]:
        return await asyncio.to_thread(self._reap, frozenset(keep))

    async def folder(self, name: str) -> VolumeFolder:
        return await asyncio.to_thread(self._folder, name)

    async def use(self, name: str) -> VolumeUse:
        usage = await asyncio.to_thread(self._store.usage, f"{VOLUMES}/{name}")
        return VolumeUse(usage.used_bytes, usage.limit_bytes)

    async def attach(
        self, sandbox_id: str, mounts: tuple[VolumeMount, ...], source: str | None, size_mb: int
    ) -> dict[str, VolumeFolder]:
        def attach() -> dict[str, VolumeFolder]:
            found = {}
            for mount in mounts:
                name = name_of(sandbox_id, mount)
                if mount.own and not self._path(name).is_dir():
                    self._copy(f"{source}+{mount.volume_id}", name, mount, size_mb)
                found[mount.path] = self._folder(name)
            return found

        return await asyncio.to_thread(attach)

    def _make(self, volume_id: str, size_mb: int) -> None:
        store, name = self._store, f"{VOLUMES}/{volume_id}"
        self._path("").mkdir(mode=0o700, exist_ok=True)
        if store.room() < _SMALLEST_ROOM:
            raise pool_is_full(store)
        with _told(f"The volume {volume_id} cannot be made"):
            folder = store.make(name, size_mb * MIB)
            try:
                content = folder / "content"
                content.mkdir()
                os.chown(content, _OWNER, _OWNER)
                content.chmod(0o777)
                (folder / "staging").mkdir(mode=0o700)
            except BaseException:
                store.remove(name)
                raise

    def _copy(self, image: str, name: str, mount: VolumeMount, size_mb: int) -> None:
        self._path("").mkdir(mode=0o700, exist_ok=True)
        try:
            with _told(f"The volume {mount.name} cannot be copied"):
                self._store.make_from(image, f"{VOLUMES}/{name}", size_mb * MIB)
        except FileNotFoundError:
            raise SnapshotDamagedError(
                f"The copy of the volume {mount.name} that was kept with the snapshot is gone: "
                "nothing can start from it. Put the data folder back from a copy, or delete it."
            ) from None

    def _folder(self, name: str) -> VolumeFolder:
        path = self._path(name)
        if not (path / "content").is_dir():
            raise EngineError(
                f"The volume {name} is gone from {path.parent}: put it back from a copy of the "
                "data folder, or delete it."
            )
        return VolumeFolder(path / "content", path / "staging")

    def _drop_of(self, sandbox_id: str) -> None:
        for name in self._store.volumes():
            if name.startswith(f"{sandbox_id}+"):
                self._store.remove(f"{VOLUMES}/{name}")

    def _reap(self, keep: frozenset[str]) -> list[str]:
        found = self._store.volumes()
        doomed = [name for name in found if name.partition("+")[0] not in keep]
        for name in doomed:
            self._store.remove(f"{VOLUMES}/{name}")
        for name in set(found) - set(doomed):
            with contextlib.suppress(FileNotFoundError):
                for left in (self._path(name) / "staging").iterdir():
                    _remove(left)
        return doomed

    def _path(self, name: str) -> Path:
        return self._store.path(f"{VOLUMES}/{name}" if name else VOLUMES)

    @property
    def _store(self) -> Store:
        return self._current()


def _remove(left: Path) -> None:
    if left.is_dir() and not left.is_symlink():
        remove_tree(left)
    else:
        left.unlink(missing_ok=True)


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    """What the system refuses, as errors of ours; FileNotFoundError is the caller's to tell."""
    try:
        yield
    except (AenvError, FileNotFoundError):
        raise
    except FileExistsError as error:
        raise ConflictError(f"{what}: it exists.") from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise DiskFullError(f"{what}: the pool of disks is full. Free some of it.") from error
        raise EngineError(f"{what}: {error}") from error
