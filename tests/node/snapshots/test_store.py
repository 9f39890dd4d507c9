"""Stored snapshots: whole or absent, found again, held by whoever starts from them."""

from __future__ import annotations

import asyncio
import json
import stat
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.waiting import until

from aenv.models.errors import (
    ConflictError,
    EngineError,
    ImageUnusableError,
    InvalidRequestError,
    NotFoundError,
    SnapshotDamagedError,
)
from aenv.models.sandboxes import Resources
from aenv.node.snapshots import checksums, manifest
from aenv.node.snapshots.found import Known
from aenv.node.snapshots.manifest import Manifest, Private, memory_files
from aenv.node.snapshots.store import SnapshotStore

ONE, TWO, THREE = "s" + "1" * 19, "s" + "2" * 19, "s" + "3" * 19
PRIVATE = Private("host-secret", {"A": "1", "KEY": "x"}, frozenset({"KEY"}))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SnapshotStore]:
    store = SnapshotStore(tmp_path / "snapshots", lull=0)
    await store.open(frozenset())
    yield store
    await store.close()


async def keep(store: SnapshotStore, name: str, *, pages: bytes = b"pages" * 1000) -> Path:
    async with store.draft(name) as draft:
        (draft.memory / "guest").mkdir(parents=True)
        (draft.memory / "pages.img").write_bytes(pages)
        (draft.memory / "guest/agent").write_bytes(b"agent")
        facts = Manifest(
            id=name,
            template="base",
            template_digest="abc",
            resources=Resources(),
            created_at=1.5,
            engine="gvisor",
            engine_version="1",
            memory=memory_files(draft.memory),
            parent=None,
            log_seq=7,
        )
        return (await store.publish(draft, facts, PRIVATE)).folder


async def nothing() -> None: ...


async def test_a_draft_that_is_not_published_leaves_nothing(store: SnapshotStore) -> None:
    async with store.draft(ONE) as draft:
        draft.memory.mkdir()
    assert list(store.place(ONE).parent.iterdir()) == []
    assert ONE not in store


async def test_what_was_published_is_found_by_the_next_server(store: SnapshotStore) -> None:
    folder = await keep(store, ONE)
    await keep(store, TWO)
    (folder.parent / ".new-s33").mkdir()
    await store.close()

    again = SnapshotStore(folder.parent)
    await again.open(frozenset({ONE}))

    assert again.get(ONE).manifest == store.get(ONE).manifest
    assert again.get(ONE).private == PRIVATE
    assert {path.name for path in folder.parent.iterdir()} == {ONE}
    await again.close()


async def test_names_are_checked_and_taken_once(store: SnapshotStore) -> None:
    with pytest.raises(InvalidRequestError):
        async with store.draft("../escape"):
            pass
    async with store.draft(ONE):
        with pytest.raises(ConflictError):
            async with store.draft(ONE):
                pass
    await keep(store, ONE)
    with pytest.raises(ConflictError):
        await keep(store, ONE)


async def test_secrets_are_for_us_alone_and_not_in_the_manifest(store: SnapshotStore) -> None:
    folder = await keep(store, ONE)
    for file in (manifest.MANIFEST, manifest.PRIVATE):
        assert stat.S_IMODE((folder / file).stat().st_mode) == 0o600
    assert "host-secret" not in (folder / manifest.MANIFEST).read_text()
    assert "host-secret" not in repr(store.get(ONE).private)
    assert PRIVATE.env_of(same_life=True) == {"A": "1", "KEY": "x"}
    assert PRIVATE.env_of(same_life=False) == {"A": "1"}


async def test_a_checksum_is_added_later_and_tells_of_damage(store: SnapshotStore) -> None:
    folder = await keep(store, ONE)
    await until(lambda: store.get(ONE).checksum != "")
    await store.verify(ONE)
    pages = folder / "memory/pages.img"
    pages.write_bytes(pages.read_bytes()[:-1] + b"!")

    with pytest.raises(EngineError, match="damaged"):
        await store.verify(ONE)

    again = SnapshotStore(folder.parent)
    await again.open(frozenset({ONE}))
    assert again.get(ONE).checksum == store.get(ONE).checksum


async def test_a_snapshot_that_is_deleted_soon_is_not_read_for_a_checksum(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    going_on = threading.Event()

    def add(folder: Path) -> str:
        read.append(folder.name)
        going_on.wait(30)
        return "sum"

    monkeypatch.setattr(checksums, "add", add)
    await keep(store, ONE)
    await until(lambda: read == [ONE])
    await keep(store, TWO)
    await store.delete(TWO, nothing)
    await keep(store, THREE)
    going_on.set()

    await until(lambda: store.get(THREE).checksum == "sum")
    assert read == [ONE, THREE]


async def test_many_may_delete_one_at_once(store: SnapshotStore) -> None:
    folder = await keep(store, ONE)
    dropping = 0

    async def drop_disk() -> None:
        nonlocal dropping
        dropping += 1
        assert dropping == 1
        await asyncio.sleep(0.01)
        dropping -= 1

    await asyncio.gather(*(store.delete(ONE, drop_disk) for _ in range(8)))

    assert not folder.exists()
    assert [path for path in folder.parent.iterdir() if ONE in path.name] == []


async def test_of_one_that_is_deleted_while_it_is_read_nothing_is_said(
    store: SnapshotStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reading, going_on = threading.Event(), threading.Event()
    really = checksums.add

    def add(folder: Path) -> str:
        reading.set()
        going_on.wait(30)
        return really(folder)

    monkeypatch.setattr(checksums, "add", add)
    caplog.set_level("INFO", "aenv")
    await keep(store, ONE)
    await until(reading.is_set)
    await store.delete(ONE, nothing)
    unreadable = await keep(store, TWO)
    (unreadable / ".checksum").mkdir()  # so that none can be written
    going_on.set()

    await until(lambda: [one for one in caplog.messages if "no checksum" in one])
    assert not [one for one in caplog.messages if ONE in one]
    assert [TWO in one for one in caplog.messages if "no checksum" in one] == [True]


async def test_a_truncated_or_missing_file_makes_a_memory_unusable(store: SnapshotStore) -> None:
    folder = await keep(store, ONE)
    facts = store.get(ONE).manifest
    assert facts.memory_image(folder).path == folder / "memory"
    (folder / "memory/pages.img").write_bytes(b"short")
    with pytest.raises(ImageUnusableError, match=r"pages.img .* has 5 bytes instead of 5000"):
        facts.memory_image(folder)
    (folder / "memory/guest/agent").unlink()
    with pytest.raises(ImageUnusableError, match="guest/agent"):
        facts.memory_image(folder)


async def test_a_deletion_waits_for_those_who_start_from_it(store: SnapshotStore) -> None:
    folder = await keep(store, ONE)
    dropped: list[bool] = []

    async def drop() -> None:
        dropped.append(folder.exists())

    async with store.using(ONE):
        deletion = asyncio.create_task(store.delete(ONE, drop))
        await asyncio.sleep(0)
        with pytest.raises(NotFoundError):
            async with store.using(ONE):
                pass
        assert folder.exists()
        assert dropped == []
    await deletion
    assert dropped == [False]
    assert list(folder.parent.iterdir()) == []
    await store.delete(ONE, drop)


async def test_a_deletion_whose_disk_stays_is_not_seen_and_can_be_repeated(
    store: SnapshotStore,
) -> None:
    folder = await keep(store, ONE)

    async def fails() -> None:
        raise EngineError("busy")

    with pytest.raises(EngineError):
        await store.delete(ONE, fails)
    assert ONE not in store
    await store.delete(ONE, nothing)
    assert not folder.exists()


async def test_a_manifest_of_version_1_is_of_a_disk_image_without_sealed_layers(
    store: SnapshotStore,
) -> None:
    folder = await keep(store, ONE)
    old = json.loads((folder / manifest.MANIFEST).read_text())
    del old["layers"], old["own_disk"]
    (folder / manifest.MANIFEST).write_text(json.dumps(old | {"version": 1}))

    assert manifest.read(folder) == store.get(ONE).manifest
    assert (manifest.read(folder).layers, manifest.read(folder).own_disk) == ((), True)

    (folder / manifest.MANIFEST).write_text(json.dumps(old | {"version": 0}))
    with pytest.raises(EngineError, match="version 0"):
        manifest.read(folder)


async def test_what_a_later_version_wrote_is_left_alone(store: SnapshotStore) -> None:
    folder = await keep(store, ONE)
    newer = json.loads((folder / manifest.MANIFEST).read_text()) | {"version": 99}
    (folder / manifest.MANIFEST).write_text(json.dumps(newer))
    again = SnapshotStore(folder.parent)

    await again.open(frozenset({ONE}))

    assert ONE not in again
    again.salvage(ONE, Known("base", Resources(), "gvisor"))
    with pytest.raises(EngineError, match="newer server"):
        again.get(ONE)
    assert (folder / "memory/pages.img").exists()


@pytest.mark.parametrize("left", [b"", b"{", b"[]", b'{"version": 1}', b"\xff\xfe"])
async def test_of_a_damaged_manifest_the_disk_is_left_to_who_knows_the_rest(
    store: SnapshotStore, left: bytes
) -> None:
    folder = await keep(store, ONE)
    (folder / manifest.MANIFEST).write_bytes(left)
    again = SnapshotStore(folder.parent)
    await again.open(frozenset({ONE}))
    assert ONE not in again
    assert again.damaged() == [ONE]
    with pytest.raises(SnapshotDamagedError, match="boots from its disk"):
        again.get(ONE)

    again.salvage(ONE, Known("base", Resources(cpu=3), "gvisor"))

    facts = again.get(ONE).manifest
    assert (facts.has_memory, facts.template, facts.resources.cpu) == (False, "base", 3)
    with pytest.raises(SnapshotDamagedError, match=r"manifest\.json"):
        await again.verify(ONE)
    await again.delete(ONE, nothing)
    assert list(folder.parent.iterdir()) == []
    with pytest.raises(NotFoundError):
        again.get(ONE)


@pytest.mark.parametrize("left", [None, b"", b'{"host_secret": "x", "env_vars": 1}'])
async def test_without_its_secrets_a_snapshot_has_lost_its_memory_alone(
    store: SnapshotStore, left: bytes | None
) -> None:
    folder = await keep(store, ONE)
    (folder / manifest.PRIVATE).unlink()
    if left is not None:
        (folder / manifest.PRIVATE).write_bytes(left)
    again = SnapshotStore(folder.parent)

    await again.open(frozenset({ONE}))

    assert again.get(ONE).manifest == replace(store.get(ONE).manifest, memory={})
    assert "private.json" in (again.get(ONE).damage or "")
    with pytest.raises(SnapshotDamagedError):
        await again.verify(ONE)
