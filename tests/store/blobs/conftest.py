"""A blob store in a folder, with its catalog; more of them when a test wants two nodes."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from aenv.models.folders import Folders
from aenv.models.settings import BlobSettings, Settings
from aenv.store.blobs.store import BlobStore
from aenv.store.catalog import Catalog

OpenStore = Callable[..., Awaitable[BlobStore]]


def settings_in(folder: Path, store: BlobSettings | None = None) -> Settings:
    names = ("data", "cache", "config", "run")
    folders = Folders(**{name: folder / name for name in names})
    return Settings(folders=folders, store=store or BlobSettings())


@pytest.fixture
async def open_store(tmp_path: Path) -> AsyncIterator[OpenStore]:
    """``open_store(folder=…, store=…)``: the store of a server with that data folder."""
    async with AsyncExitStack() as stack:

        async def open_(folder: str = "one", store: BlobSettings | None = None) -> BlobStore:
            settings = settings_in(tmp_path / folder, store)
            catalog = await Catalog.open(settings.folders.data / "catalog.sqlite")
            stack.push_async_callback(catalog.close)
            return await BlobStore.open(settings, catalog)

        yield open_


@pytest.fixture
async def store(open_store: OpenStore) -> BlobStore:
    return await open_store()
