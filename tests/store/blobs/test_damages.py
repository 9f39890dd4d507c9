"""Damaged and missing objects: never served, found, named, mended."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import zstandard
from tests.store.blobs.contents import PAGE, names_in, objects_in, pages, stream, whole

from aenv.models.errors import BlobDamagedError, BlobMissingError, BlobStoreError, Culprit
from aenv.store.blobs.chunks import LONGEST
from aenv.store.blobs.store import BlobStore


def chunk_files(store: BlobStore) -> list[Path]:
    return sorted(path for key, path in objects_in(store).items() if key.startswith("chunks/"))


def truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def other(path: Path) -> None:
    """A whole frame of the right length, of other content."""
    length = zstandard.frame_content_size(path.read_bytes())
    path.write_bytes(zstandard.compress(bytes(length)))


def bomb(path: Path) -> None:
    """It would be 10 GiB."""
    frames = zstandard.ZstdCompressor().compressobj(size=10 << 30)
    path.write_bytes(
        frames.compress(bytes(1 << 20)) + frames.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    )


def huge(path: Path) -> None:
    os.truncate(path, 40 * LONGEST)


DAMAGES = (truncated, flipped, other, bomb, huge, Path.unlink)


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_chunk_is_never_served_and_verify_names_who_is_hit(
    store: BlobStore, damage: object, tmp_path: Path
) -> None:
    good = await store.put(stream(pages(70, 1)), holder="snapshot:good")
    [untouched] = chunk_files(store)
    bad = await store.put(stream(pages(70, 2)), holder="snapshot:bad")
    [victim] = [path for path in chunk_files(store) if path != untouched]
    damage(victim)  # type: ignore[operator]

    with pytest.raises((BlobDamagedError, BlobMissingError)) as refused:
        await whole(store, bad.ref.id)
    assert victim.name in str(refused.value)
    assert refused.value.culprit is Culprit.INFRASTRUCTURE
    with pytest.raises(BlobStoreError):
        await store.fetch(bad.ref, tmp_path / "copy")
    assert names_in(tmp_path, "copy") == []

    found = await store.verify()
    [one] = found.damages
    assert (one.blobs, one.holders) == ((bad.ref.id,), ("snapshot:bad",))
    assert one.key.endswith(victim.name)
    assert (found.blobs, found.chunks) == (2, 2)
    assert await whole(store, good.ref.id) == pages(70, 1)

    again = await store.put(stream(pages(70, 2)), holder="again")
    assert again.bytes_new == 70 * PAGE
    assert await whole(store, bad.ref.id) == pages(70, 2)
    assert (await store.verify()).damages == ()


@pytest.mark.parametrize("damage", DAMAGES)
async def test_a_damaged_manifest(store: BlobStore, damage: object) -> None:
    done = await store.put(stream(pages(70)), holder="one")
    [manifest] = [path for key, path in objects_in(store).items() if key.startswith("blobs/")]
    damage(manifest)  # type: ignore[operator]

    with pytest.raises((BlobDamagedError, BlobMissingError), match=done.ref.id):
        await store.reader(done.ref.id)
    [one] = (await store.verify()).damages
    assert one.holders == ("one",)

    again = await store.put(stream(pages(70)), holder="two")
    assert (again.bytes_new, again.ref.id == done.ref.id) == (0, False)
    assert await whole(store, again.ref.id) == pages(70)
