"""Content as the store gets it: pages, some of them zero, that differ like memory images do."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from pathlib import Path

from aenv.store.blobs.store import BlobStore

PAGE = 4096
MIB = 1 << 20


def pages(count: int, seed: int = 0) -> bytes:
    """Incompressible ones, the same for the same seed."""
    return random.Random(seed).randbytes(count * PAGE)


async def stream(content: bytes, step: int = 70_001) -> AsyncIterator[bytes]:
    for start in range(0, len(content), step):
        yield content[start : start + step]


async def whole(store: BlobStore, blob_id: str) -> bytes:
    reader = await store.reader(blob_id)
    return await reader.read(0, reader.ref.length)


def objects_in(store: BlobStore) -> dict[str, Path]:
    """Key → file of all objects but the marker; what is being written is none."""
    folder = store.objects.folder
    assert folder is not None
    return {
        str(path.relative_to(folder)): path
        for kind in ("chunks", "blobs")
        for path in (folder / kind).glob("*/*")
        if "#" not in path.name
    }


def names_in(folder: Path, part: str) -> list[str]:
    return [one.name for one in folder.iterdir() if part in one.name]
