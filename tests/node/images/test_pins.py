"""Images that are needed stay, for as long as the files of those who need them exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.node.images.recipes import Shop, TinyRecipe

from aenv.models.errors import ConflictError, NotFoundError
from aenv.node.images.records import Shelf


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path, TinyRecipe())


async def test_a_pinned_image_is_neither_deleted_nor_pruned(shop: Shop, tmp_path: Path) -> None:
    store = shop.store()
    first = (await store.open("tiny")).info.digest
    holder = tmp_path / "snapshot"
    holder.mkdir()
    await store.pin("tiny", first, holder)
    await store.pin("tiny", first, holder)
    with pytest.raises(ConflictError, match="needed by 1"):
        await store.delete("tiny")

    for revision in ("2", "3", "4"):
        shop.recipe.revision = revision
        await store.ensure("tiny", wait=10)
    Shelf(tmp_path / "cache/images").prune("tiny", keep=1)

    exact = await store.open_exact("tiny", first)
    assert exact is not None
    assert exact.info.digest == first
    assert (await store.open("tiny")).info.digest != first


async def test_a_pin_ends_with_its_holder(shop: Shop, tmp_path: Path) -> None:
    store = shop.store()
    digest = (await store.open("tiny")).info.digest
    holder = tmp_path / "sandbox.json"
    holder.touch()
    await store.pin("tiny", digest, holder)
    holder.unlink()

    await store.delete("tiny")

    assert await store.open_exact("tiny", digest) is None
    with pytest.raises(NotFoundError):
        await store.open_exact("nonsense", digest)
