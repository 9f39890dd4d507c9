"""What was paused in memory alone, as the disk was full, is kept by itself once there is room."""

from __future__ import annotations

import asyncio

import pytest
from tests.control.houses import House
from tests.fakes.waiting import until, until_equal

from aenv.models.errors import DiskFullError, EngineError
from aenv.models.ids import new_snapshot_id
from aenv.models.snapshots import PauseMode
from aenv.store import snapshots
from aenv.store.records import SandboxRecord


async def frozen(house: House) -> SandboxRecord:
    """A sandbox whose pause at the end of its time found the disk full."""
    record = await house.create(timeout=60, auto_pause=True)
    house.node.knobs.pause_errors = [DiskFullError("no room")]
    house.clock.pass_time(60)
    await until_equal(lambda: house.state(record.id), "paused")
    await until(lambda: house.node.notes)
    assert (await house.row(record.id)).snapshot_id is None
    return record


def asked(house: House) -> int:
    return sum(call == "keep" for call, _ in house.node.calls)


async def test_it_is_kept_when_there_is_room_and_its_log_says_so(house: House) -> None:
    record = await frozen(house)

    await house.system._belated.keep_all()

    row = await house.row(record.id)
    assert (row.state, row.pause_mode, row.note) == ("paused", PauseMode.FULL, None)
    assert row.snapshot_id in house.node.images
    assert row.snapshot_id in await house.system.catalog.read(snapshots.needed)
    assert record.id in house.node.hot
    assert "on disk now" in house.node.notes[-1][2]
    await house.system._belated.keep_all()
    assert asked(house) == 1
    house.node.hot.clear()
    assert (await house.connect(record.id))[1]


async def test_a_disk_that_is_still_full_is_asked_for_one_only(house: House) -> None:
    records = [await frozen(house) for _ in range(2)]
    house.node.knobs.pause_errors = [DiskFullError("still none")]
    await house.system._belated.keep_all()
    assert asked(house) == 1
    assert [(await house.row(one.id)).snapshot_id for one in records] == [None, None]
    await house.system._belated.keep_all()
    assert all([(await house.row(one.id)).snapshot_id for one in records])


async def test_one_that_fails_does_not_keep_the_others_waiting(house: House) -> None:
    records = [await frozen(house) for _ in range(2)]
    house.node.knobs.pause_errors = [EngineError("broken")]
    await house.system._belated.keep_all()
    kept = [(await house.row(one.id)).snapshot_id for one in records]
    assert sum(one is not None for one in kept) == 1


async def test_a_resume_comes_after_it(house: House) -> None:
    record = await frozen(house)
    house.node.knobs.pause_gate = asyncio.Event()
    keeping = asyncio.create_task(house.system._belated.keep_all())
    await until(lambda: asked(house) == 1)
    connecting = asyncio.create_task(house.connect(record.id))
    await asyncio.sleep(0)
    house.node.knobs.pause_gate.set()
    await asyncio.gather(keeping, connecting)

    assert await house.state(record.id) == "running"
    await until(lambda: not house.node.images)


async def test_a_kill_calls_it_off(house: House) -> None:
    record = await frozen(house)
    house.node.knobs.pause_gate = asyncio.Event()
    keeping = asyncio.create_task(house.system._belated.keep_all())
    await until(lambda: asked(house) == 1)
    await house.system.sandboxes.kill(house.caller, record.id)
    await keeping

    assert await house.state(record.id) == "killed"
    assert house.node.images == {}


async def test_a_catalog_that_cannot_record_it_leaves_nothing_behind(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await frozen(house)
    belated = house.system._belated
    broken = [True]

    def fail_once(*arguments: object) -> None:
        if broken.pop():
            raise ValueError("odd")

    monkeypatch.setattr(belated, "_record", fail_once)
    await house.system._belated.keep_all()
    assert asked(house) == 1
    await until(lambda: not house.node.images)
    assert (await house.row(record.id)).snapshot_id is None


async def test_a_restart_before_it_was_recorded_keeps_it_frozen(house: House) -> None:
    record = await frozen(house)
    await house.node.keep(record.id, new_snapshot_id())
    await house.abandon()
    await house.restart()
    assert record.id in house.node.hot
    assert house.node.images == {}
    assert await house.state(record.id) == "paused"
    await house.system._belated.keep_all()
    assert (await house.row(record.id)).snapshot_id in house.node.images
