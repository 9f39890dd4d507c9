"""What is acknowledged as kept, or given back, is so in the catalog that a loss of power leaves."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from tests.control.houses import House
from tests.fakes.waiting import until

from aenv.models.errors import SandboxNotFoundError
from aenv.store import catalog as catalog_module
from aenv.store.catalog import Catalog

SANDBOX = text("SELECT state, snapshot_id FROM sandboxes WHERE id = :id")
SNAPSHOT = text("SELECT count(*) FROM snapshots WHERE id = :id")


class Disk:
    """A copy of the catalog's files as they were when their log was synced last."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.synced = False

    def fsync(self, descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        if path.name.endswith("-wal"):
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
            base = path.name.removesuffix("-wal")
            for name in (base, path.name):
                shutil.copyfile(path.with_name(name), self.folder / name)
            self.synced = True

    async def ask(self, question: Callable[[Connection], object]) -> object:
        (path,) = self.folder.glob("*.sqlite")
        catalog = await Catalog.open(path)
        try:
            return await catalog.read(question)
        finally:
            await catalog.close()


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    found = Disk(tmp_path / "survivor")
    monkeypatch.setattr(catalog_module.os, "fsync", found.fsync)
    return found


async def test_a_pause_that_was_acknowledged(house: House, disk: Disk) -> None:
    sandbox = await house.create()

    await house.pause(sandbox.id)

    row = await disk.ask(lambda db: tuple(db.execute(SANDBOX, {"id": sandbox.id}).one()))
    assert row == ("paused", (await house.row(sandbox.id)).snapshot_id)


async def test_a_snapshot_that_was_acknowledged(house: House, disk: Disk) -> None:
    sandbox = await house.create()

    kept = await house.snapshot(sandbox.id, "mine")

    assert await disk.ask(lambda db: db.scalar(SNAPSHOT, {"id": kept.id})) == 1


async def test_no_image_is_freed_that_a_row_may_still_name(house: House, disk: Disk) -> None:
    sandbox = await house.create()
    await house.pause(sandbox.id)
    image = (await house.row(sandbox.id)).snapshot_id
    await house.connect(sandbox.id)

    await until(lambda: house.node.count("delete_snapshot"))

    row = await disk.ask(lambda db: tuple(db.execute(SANDBOX, {"id": sandbox.id}).one()))
    assert row == ("running", None)
    assert await disk.ask(lambda db: db.scalar(SNAPSHOT, {"id": image})) == 0


async def test_a_snapshot_that_was_recorded_outlives_its_calling_off(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    sandbox = await house.create()
    writing, going_on, really = asyncio.Event(), asyncio.Event(), house.system.catalog.sync

    async def sync() -> None:
        writing.set()
        await going_on.wait()
        await really()

    monkeypatch.setattr(house.system.catalog, "sync", sync)
    taking = asyncio.create_task(house.snapshot(sandbox.id, "mine"))
    await writing.wait()
    await house.system.sandboxes.kill(house.caller, sandbox.id)
    going_on.set()
    with pytest.raises(SandboxNotFoundError):
        await taking
    await until(lambda: not house.system._background._tasks)

    kept = await house.system.snapshots.get(house.caller.team, "mine")
    assert kept.id in house.node.images
