"""Kept copies of disks, by name: made of a sandbox's disk, never changed, dropped as a whole.

Copies of the volumes it had are kept beside it, as ``{name}+{volume}``, and count as its bytes.

Everything blocks.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from pathlib import Path

from aenv.models.errors import AenvError, ConflictError, DiskFullError, EngineError, NotFoundError
from aenv.node.disks.stores import VOLUMES, Store
from aenv.node.engine import DiskImage

_CHUNK = 1 << 20


def save(store: Store, sandbox_id: str, name: str, volumes: Mapping[str, str]) -> DiskImage:
    """``volumes``: the store's name of each, by id. Raises ConflictError (the name is taken),
    NotFoundError, DiskFullError, EngineError.
    """
    try:
        store.save(sandbox_id, name)
        for volume_id, source in volumes.items():
            store.save(f"{VOLUMES}/{source}", f"{name}+{volume_id}")
        return describe(store, name)
    except OSError as error:
        raise _failure(error, f"The disk of {sandbox_id} cannot be kept as {name}") from error


def describe(store: Store, name: str) -> DiskImage:
    usages = [store.image_usage(one) for one in _parts(store, name) or [name]]
    return DiskImage(name, sum(one.bytes for one in usages), sum(one.own_bytes for one in usages))


def list_images(store: Store) -> list[DiskImage]:
    found = []
    for name in sorted({name.partition("+")[0] for name in store.images()}):
        try:
            found.append(describe(store, name))
        except FileNotFoundError:
            continue  # dropped meanwhile
    return found


def drop(store: Store, name: str) -> None:
    for one in _parts(store, name):
        store.drop(one)


def verify(store: Store, name: str) -> None:
    """Read every file: the file system compares what it reads with its checksums."""
    folder = store.image_path(name)
    if not folder.is_dir():
        raise NotFoundError(f"There is no disk image {name}.")
    for parent, _, files in os.walk(folder):
        for path in (Path(parent, file) for file in files):
            if path.is_file() and not path.is_symlink():
                _read(path, path.relative_to(folder))


def _parts(store: Store, name: str) -> list[str]:
    """What is there of the disk's copy and of those of its volumes."""
    return [one for one in store.images() if one.partition("+")[0] == name]


def _read(path: Path, shown: Path) -> None:
    try:
        with path.open("rb", buffering=0) as file:
            while file.read(_CHUNK):
                pass
    except OSError as error:
        raise EngineError(f"The disk image is damaged: {shown}: {error.strerror}.") from error


def _failure(error: OSError, what: str) -> AenvError:
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return DiskFullError(f"{what}: the pool of disks is full. Free some of it.")
        case errno.EEXIST:
            return ConflictError(f"{what}: it exists.")
        case errno.ENOENT:
            return NotFoundError(f"{what}: it is gone.")
    return EngineError(f"{what}: {error}")
