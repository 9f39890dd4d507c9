"""Images that are needed stay, for as long as the files of those who need them exist."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from tests.node.images.recipes import Shop, TinyRecipe

from aenv.models.errors import ConflictError, NotFoundError
from aenv.node.images import pins
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


def test_the_links_of_a_holder_go_with_it(tmp_path: Path) -> None:
    holder, other = tmp_path / "sandbox.json", tmp_path / "other.json"
    for one in (holder, other):
        one.touch()
        for digest in ("a" * 64, "b" * 64):
            pins.pin(tmp_path, digest, one)
    holder.unlink()

    pins.release(tmp_path, holder)

    assert links(tmp_path) == [other, other]


def test_old_links_of_killed_holders_are_swept_and_young_ones_left(tmp_path: Path) -> None:
    """A young one may be that of a snapshot another server is about to publish."""
    live, dead, draft = (tmp_path / name for name in ("live", "dead", "draft"))
    live.touch()
    for one in (live, dead):
        pins.pin(tmp_path, "a" * 64, one)
    hours_ago = time.time() - 7200
    for link in tmp_path.glob("pins/*/*"):
        os.utime(link, (hours_ago, hours_ago), follow_symlinks=False)
    pins.pin(tmp_path, "a" * 64, draft)

    Shelf(tmp_path).sweep()

    assert sorted(links(tmp_path)) == [draft, live]
    assert pins.needed_by(tmp_path, "a" * 64) == [live]


async def test_a_restarted_store_sweeps(shop: Shop, tmp_path: Path) -> None:
    store = shop.store()
    digest = (await store.open("tiny")).info.digest
    await store.pin("tiny", digest, tmp_path / "killed.json")
    hours_ago = time.time() - 7200
    for link in (tmp_path / "cache/images").glob("pins/*/*"):
        os.utime(link, (hours_ago, hours_ago), follow_symlinks=False)

    await shop.store().start()

    assert links(tmp_path / "cache/images") == []


def test_a_build_lets_go_of_the_layers_it_needed(tmp_path: Path) -> None:
    shelf = Shelf(tmp_path)
    with shelf.workspace("tiny") as holder:
        pins.pin(shelf.layers.root, "a" * 32, holder)
        assert pins.needed_by(shelf.layers.root, "a" * 32) == [holder]
    assert links(shelf.layers.root) == []


def links(shelf: Path) -> list[Path]:
    return [link.readlink() for link in shelf.glob("pins/*/*")]
