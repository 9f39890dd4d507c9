"""kill -9 at any moment, and start again: what runs is kept, the rest is finished off."""

from __future__ import annotations

import asyncio

import pytest
from tests.control.houses import House
from tests.fakes.waiting import until, until_equal

from aenv.models.errors import DiskFullError, HostSetupError
from aenv.models.sandboxes import Culprit, EndKind, SandboxExit
from aenv.models.snapshots import RestoreMode
from aenv.store import sandboxes as rows
from aenv.store.catalog import Catalog
from aenv.store.records import SandboxRecord


async def test_running_sandboxes_are_adopted_with_their_routes(house: House) -> None:
    record = await house.create(timeout=600)
    route = house.system.routes.get(record.id)
    await house.abandon()

    await house.restart()

    assert house.system.routes.get(record.id) == route
    assert await house.state(record.id) == "running"
    house.clock.pass_time(601)
    await until_equal(lambda: house.state(record.id), "killed")


async def test_what_was_being_made_is_reaped_and_its_key_is_free(house: House) -> None:
    house.node.knobs.create_gate = asyncio.Event()
    request = asyncio.create_task(house.create(idempotency_key="k", fingerprint="f"))
    await until(lambda: house.node.count("create"))
    sandbox_id = house.node.calls[-1][1]
    copy = dict(house.node.running)
    await house.system.catalog.close()
    request.cancel()
    old = house.system
    house.node.running = copy
    house.node.knobs.create_gate = None

    await house.restart()

    await until_equal(lambda: house.state(sandbox_id), "failed")
    row = await house.row(sandbox_id)
    assert row.end_kind == EndKind.CREATE_FAILED
    assert row.end_reason
    again = await house.create(idempotency_key="k", fingerprint="f")
    assert again.id != sandbox_id
    for task in [*old._loops, *old._background._tasks]:
        task.cancel()


async def test_what_was_being_ended_is_finished(house: House) -> None:
    record = await house.create()
    house.node.knobs.destroy_gate = asyncio.Event()
    kill = asyncio.create_task(house.system.sandboxes.kill(house.caller, record.id))
    await until(lambda: house.node.count("destroy"))
    await house.abandon()
    kill.cancel()
    house.node.knobs.destroy_gate = None

    await house.restart()

    await until_equal(lambda: house.state(record.id), "killed")
    assert (await house.row(record.id)).end_kind == EndKind.KILLED
    assert house.node.running == {}


async def test_an_exit_that_nobody_saw_is_recorded(house: House) -> None:
    record = await house.create()
    await house.abandon()
    del house.node.running[record.id]
    house.node.ended = [SandboxExit(record.id, 3, Culprit.POLICY, "init ended")]

    await house.restart()

    await until_equal(lambda: house.state(record.id), "killed")
    row = await house.row(record.id)
    assert (row.exit_code, row.end_kind) == (3, EndKind.GUEST_EXITED)
    assert house.node.notes == [(record.id, "error", "the sandbox ended: init ended")]


async def test_a_machine_that_is_gone_has_failed(house: House) -> None:
    record = await house.create()
    await house.abandon()
    house.node.running.clear()

    await house.restart()

    await until_equal(lambda: house.state(record.id), "failed")
    assert (await house.row(record.id)).end_kind == EndKind.INFRASTRUCTURE
    [(sandbox_id, _, told)] = house.node.notes
    assert (sandbox_id, "the sandbox ended: its machine was gone" in told) == (record.id, True)


async def test_what_expired_meanwhile_ends_at_once(house: House) -> None:
    record = await house.create(timeout=60)
    await house.abandon()
    house.clock.pass_time(3600)

    await house.restart()

    await until_equal(lambda: house.state(record.id), "killed")
    assert (await house.row(record.id)).end_kind == EndKind.EXPIRED


async def test_machines_nobody_knows_are_destroyed(house: House) -> None:
    record = await house.create()
    house.node.running["istranger"] = house.node.running[record.id]
    await house.abandon()

    await house.restart()

    assert set(house.node.running) == {record.id}


async def test_closing_leaves_sandboxes_running(house: House) -> None:
    record = await house.create()

    await house.system.close()
    assert house.node.closed
    assert record.id in house.node.running

    await house.restart()
    assert await house.state(record.id) == "running"


async def test_a_node_that_cannot_start_leaves_nothing_open(house: House) -> None:
    await house.system.close()
    house.node.knobs.start_error = HostSetupError("no cgroups; run aenv doctor")

    with pytest.raises(HostSetupError, match="doctor"):
        await house.restart()

    assert house.node.closed
    house.node.knobs.start_error = None
    await house.restart()


async def test_a_row_without_its_creation_is_swept_up(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await house.create()
    from sqlalchemy import update

    from aenv.store.tables import sandboxes

    orphan = update(sandboxes).where(sandboxes.c.id == record.id).values(state="creating")
    await house.system.catalog.write(lambda db: db.execute(orphan).rowcount)

    house.clock.pass_time(31)

    await until_equal(lambda: house.state(record.id), "failed")
    assert house.node.running == {}


class TestPausedOnes:
    async def test_stay_frozen_in_memory(self, house: House) -> None:
        record = await house.create(timeout=60)
        await house.pause(record.id)
        image = (await house.row(record.id)).snapshot_id
        await house.abandon()
        house.clock.pass_time(3600)

        await house.restart()

        assert (await house.state(record.id), list(house.node.hot)) == ("paused", [record.id])
        assert list(house.node.images) == [image]
        resumed, _ = await house.connect(record.id)
        assert resumed.restored is RestoreMode.HOT

    async def test_are_not_lost_with_the_host(self, house: House) -> None:
        record = await house.create()
        await house.pause(record.id)
        await house.abandon()
        house.node.hot.clear()

        await house.restart()

        assert await house.state(record.id) == "paused"
        resumed, _ = await house.connect(record.id)
        assert resumed.restored is RestoreMode.WARM

    async def test_that_were_in_memory_only_are_lost_with_it(self, house: House) -> None:
        record = await house.create(timeout=60, auto_pause=True)
        house.node.knobs.pause_errors = [DiskFullError("no room")]
        house.clock.pass_time(60)
        await until_equal(lambda: house.state(record.id), "paused")
        await house.abandon()
        house.node.hot.clear()

        await house.restart()

        await until_equal(lambda: house.state(record.id), "failed")
        assert "the sandbox ended" in house.node.notes[-1][2]

    async def test_killed_before_free_their_images(self, house: House) -> None:
        record = await house.create()
        await house.pause(record.id)
        house.node.knobs.destroy_gate = asyncio.Event()
        kill = asyncio.create_task(house.system.sandboxes.kill(house.caller, record.id))
        await until(lambda: house.node.count("destroy"))
        await house.abandon()
        kill.cancel()
        house.node.knobs.destroy_gate = None

        await house.restart()

        await until_equal(lambda: house.state(record.id), "killed")
        assert (house.node.hot, house.node.images) == ({}, {})


class TestInTheMiddleOfAPause:
    async def _begun(self, house: House) -> SandboxRecord:
        record = await house.create()
        house.node.knobs.pause_gate = asyncio.Event()
        pausing = asyncio.create_task(house.pause(record.id))
        await until(lambda: house.node.count("pause"))
        await house.abandon()
        pausing.cancel()
        house.node.knobs.pause_gate = None
        return await self._row(house, record.id)

    async def _row(self, house: House, sandbox_id: str) -> SandboxRecord:
        catalog = await Catalog.open(house.settings.folders.data / "catalog.sqlite")
        row = await catalog.read(lambda db: rows.get(db, sandbox_id))
        await catalog.close()
        assert row is not None
        return row

    async def test_it_runs_on_when_its_machine_is_there(self, house: House) -> None:
        row = await self._begun(house)
        assert (row.state, row.snapshot_id is not None) == ("pausing", True)

        await house.restart()

        row = await house.row(row.id)
        assert (row.state, row.snapshot_id) == ("running", None)
        assert house.system.routes.get(row.id) is not None
        await house.pause(row.id)

    async def test_it_runs_on_though_its_image_is_there_too(self, house: House) -> None:
        row = await self._begun(house)
        house.node._keep(row.id, row.snapshot_id or "", True, None)

        await house.restart()

        assert await house.state(row.id) == "running"
        await until(lambda: not house.node.images)

    async def test_it_is_paused_when_only_its_image_is_there(self, house: House) -> None:
        row = await self._begun(house)
        house.node._keep(row.id, row.snapshot_id or "", True, None)
        house.node.running.clear()

        await house.restart()

        assert await house.state(row.id) == "paused"
        _, resumed = await house.connect(row.id)
        assert resumed

    async def test_it_has_ended_when_neither_is_there(self, house: House) -> None:
        row = await self._begun(house)
        house.node.running.clear()

        await house.restart()

        await until_equal(lambda: house.state(row.id), "failed")


class TestInTheMiddleOfAResume:
    async def _begun(self, house: House) -> SandboxRecord:
        record = await house.create()
        await house.pause(record.id)
        house.node.knobs.resume_gate = asyncio.Event()
        connecting = asyncio.create_task(house.connect(record.id))
        await until(lambda: house.node.count("resume"))
        await house.abandon()
        connecting.cancel()
        house.node.knobs.resume_gate = None
        return record

    async def test_it_runs_when_its_machine_is_there(self, house: House) -> None:
        record = await self._begun(house)

        await house.restart()

        assert await house.state(record.id) == "running"
        assert house.system.routes.get(record.id) is not None
        await until(lambda: not house.node.images)

    async def test_it_is_paused_again_when_it_is_gone(self, house: House) -> None:
        record = await self._begun(house)
        house.node.hot.clear()

        await house.restart()

        assert await house.state(record.id) == "paused"
        _, resumed = await house.connect(record.id)
        assert resumed


async def test_snapshots_are_kept_and_forgotten_images_dropped(house: House) -> None:
    record = await house.create()
    kept = await house.snapshot(record.id, "mine")
    house.node._keep(record.id, "sforgotten", True, None)
    await house.abandon()

    await house.restart()

    assert list(house.node.images) == [kept.id]
    assert (await house.create(template="mine")).restored is RestoreMode.WARM


async def test_half_made_forks_leave_neither_machine_nor_image(house: House) -> None:
    record = await house.create()
    house.node.knobs.create_gate = asyncio.Event()
    forking = asyncio.create_task(house.fork(record.id, 2))
    await until(lambda: house.node.count("create") == 3)
    await house.abandon()
    forking.cancel()
    house.node.knobs.create_gate = None

    await house.restart()

    assert list(house.node.running) == [record.id]
    assert house.node.images == {}
