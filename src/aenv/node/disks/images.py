"""Kept copies of disks, by name: made of a sandbox's volume, never changed, dropped as a whole.

Everything blocks.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from aenv.models.errors import AenvError, ConflictError, DiskFullError, EngineError, NotFoundError
from aenv.node.disks.stores import Store
from aenv.node.engine import DiskImage

_CHUNK = 1 << 20


def save(store: Store, sandbox_id: str, name: str) -> DiskImage:
    """Raises ConflictError (the name is taken), NotFoundError, DiskFullError, EngineError."""
    try:
        store.save(sandbox_id, name)
        return describe(store, name)
    except OSError as error:
        raise _failure(error, f"The disk of {sandbox_id} cannot be kept as {name}") from error


def describe(store: Store, name: str) -> DiskImage:
    usage = store.image_usage(name)
    return DiskImage(name, usage.bytes, usage.own_bytes)


def list_images(store: Store) -> list[DiskImage]:
    found = []
    for name in store.images():
        try:
            found.append(describe(store, name))
        except FileNotFoundError:
            continue  # dropped meanwhile
    return found


def verify(store: Store, name: str) -> None:
    """Read every file: the file system compares what it reads with its checksums."""
    folder = store.image_path(name)
    if not folder.is_dir():
        raise NotFoundError(f"There is no disk image {name}.")
    for parent, _, files in os.walk(folder):
        for path in (Path(parent, file) for file in files):
            if path.is_file() and not path.is_symlink():
                _read(path, path.relative_to(folder))


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
