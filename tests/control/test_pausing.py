"""Pausing: once, with its image on disk before anybody is told, and never at the price of the
sandbox.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.control.gates import FakeGate
from tests.control.houses import House
from tests.fakes.waiting import until, until_equal

from aenv.models.errors import (
    ConflictError,
    DiskFullError,
    EngineError,
    GuestUnresponsiveError,
    SandboxNotFoundError,
)
from aenv.models.sandboxes import EndKind
from aenv.models.snapshots import PauseMode
from aenv.store import snapshots


async def test_a_paused_sandbox_has_an_image_and_no_route(house: House) -> None:
    record = await house.create()

    await house.pause(record.id)

    row = await house.row(record.id)
    assert (row.state, row.pause_mode) == ("paused", PauseMode.FULL)
    assert row.snapshot_id in house.node.images
    assert house.system.routes.get(record.id) is None
    kept = await house.system.catalog.read(lambda db: snapshots.get(db, row.snapshot_id or ""))
    assert kept is not None
    assert (kept.kind, kept.sandbox_id, kept.has_memory) == ("pause", record.id, True)


async def test_without_memory_only_the_disk_is_kept(house: House) -> None:
    record = await house.create()

    await house.pause(record.id, memory=False)

    row = await house.row(record.id)
    assert row.pause_mode is PauseMode.FILESYSTEM
    assert record.id not in house.node.hot


async def test_data_is_written_back_before_requests_are_held(house: House) -> None:
    gate = FakeGate()
    house.system.doors.attach(gate)
    record = await house.create()
    house.node.knobs.pause_gate = asyncio.Event()

    pausing = asyncio.create_task(house.pause(record.id))
    await until(lambda: record.id in house.node.frozen)
    assert gate.held == {record.id}
    assert house.system.routes.get(record.id) is not None
    house.node.knobs.pause_gate.set()
    await pausing

    assert gate.held == set()
    assert [call for call, _ in house.node.calls if call in ("settle", "pause")] == [
        "settle",
        "pause",
    ]


async def test_pausing_twice_is_refused(house: House) -> None:
    record = await house.create()
    await house.pause(record.id)

    with pytest.raises(ConflictError, match="paused already"):
        await house.pause(record.id)


async def test_of_two_pauses_at_once_one_wins(house: House) -> None:
    record = await house.create()

    outcomes = await asyncio.gather(
        *(house.pause(record.id) for _ in range(4)), return_exceptions=True
    )

    assert sum(outcome is None for outcome in outcomes) == 1
    assert sum(isinstance(outcome, ConflictError) for outcome in outcomes) == 3
    assert house.node.count("pause") == 1


async def test_a_caller_who_hangs_up_leaves_a_paused_sandbox(house: House) -> None:
    record = await house.create()
    house.node.knobs.pause_gate = asyncio.Event()
    caller = asyncio.create_task(house.pause(record.id))
    await until(lambda: house.node.count("pause"))

    caller.cancel()
    house.node.knobs.pause_gate.set()

    await until_equal(lambda: house.state(record.id), "paused")


async def test_a_pause_that_fails_leaves_it_running(house: House) -> None:
    record = await house.create()
    house.node.knobs.pause_errors = [EngineError("checkpoint failed")]

    with pytest.raises(EngineError):
        await house.pause(record.id)

    row = await house.row(record.id)
    assert (row.state, row.snapshot_id) == ("running", None)
    assert house.system.routes.get(record.id) is not None
    await house.pause(record.id)


async def test_a_full_disk_is_said_so_and_it_runs_on(house: House) -> None:
    record = await house.create()
    house.node.knobs.pause_errors = [DiskFullError("no room")]

    with pytest.raises(DiskFullError):
        await house.pause(record.id)

    assert await house.state(record.id) == "running"
    assert record.id in house.node.running
    assert house.system.routes.get(record.id) is not None


async def test_a_surprise_leaves_it_running_too(house: House) -> None:
    record = await house.create()
    house.node.knobs.pause_errors = [OSError("odd")]

    with pytest.raises(Exception, match="odd"):
        await house.pause(record.id)

    assert await house.state(record.id) == "running"


class TestAnAgentThatDoesNotAnswer:
    async def test_is_paused_with_its_memory_and_marked(self, house: House) -> None:
        record = await house.create()
        house.node.knobs.mute.add(record.id)

        await house.pause(record.id)

        assert (await house.row(record.id)).unresponsive_at_pause
        assert house.node.count("settle") == 0

    @pytest.mark.parametrize("options", [{"healthy": True}, {"memory": False}])
    async def test_is_not_paused_where_it_is_needed(
        self, house: House, options: dict[str, bool]
    ) -> None:
        record = await house.create()
        house.node.knobs.mute.add(record.id)

        with pytest.raises(GuestUnresponsiveError):
            await house.pause(record.id, **options)

        assert await house.state(record.id) == "running"


class TestKilling:
    async def test_a_paused_sandbox_frees_its_image(self, house: House) -> None:
        record = await house.create(env_vars={"A": "b"})
        await house.pause(record.id)

        await house.system.sandboxes.kill(house.caller, record.id)

        assert (house.node.hot, house.node.images) == ({}, {})
        row = await house.row(record.id)
        assert (row.state, row.snapshot_id, row.env_vars) == ("killed", None, {})
        assert await house.system.catalog.read(snapshots.needed) == frozenset()

    async def test_while_it_is_being_paused_calls_the_pause_off(self, house: House) -> None:
        record = await house.create()
        house.node.knobs.pause_gate = asyncio.Event()
        pausing = asyncio.create_task(house.pause(record.id))
        await until(lambda: house.node.count("pause"))

        await house.system.sandboxes.kill(house.caller, record.id)

        with pytest.raises(SandboxNotFoundError):
            await pausing
        assert await house.state(record.id) == "killed"
        assert (house.node.running, house.node.hot, house.node.images) == ({}, {}, {})

    async def test_is_finished_though_the_image_cannot_be_freed_at_once(self, house: House) -> None:
        record = await house.create()
        await house.pause(record.id)
        house.node.knobs.delete_errors = [EngineError("busy")]

        await house.system.sandboxes.kill(house.caller, record.id)

        await until_equal(lambda: house.state(record.id), "killed")
        assert house.node.images == {}


class TestTime:
    async def test_a_paused_sandbox_waits_for_ever(self, house: House) -> None:
        record = await house.create(timeout=60)
        await house.pause(record.id)

        house.clock.pass_time(10 * 365 * 24 * 3600)
        await asyncio.sleep(0.05)

        assert (await house.system.sandboxes.get(house.caller, record.id)).state == "paused"

    async def test_its_time_has_no_meaning_for_callers(self, house: House) -> None:
        record = await house.create(timeout=60)
        await house.pause(record.id)

        for call in (
            house.system.sandboxes.set_timeout(house.caller, record.id, 60),
            house.system.sandboxes.set_timeout(house.caller, record.id, 0),
            house.system.sandboxes.extend(house.caller, record.id, 60),
        ):
            with pytest.raises(SandboxNotFoundError, match="paused"):
                await call

    @pytest.mark.parametrize("memory", [True, False])
    async def test_at_its_end_it_pauses_if_it_was_made_so(self, house: House, memory: bool) -> None:
        record = await house.create(timeout=60, auto_pause=True, auto_pause_memory=memory)

        house.clock.pass_time(60)

        await until_equal(lambda: house.state(record.id), "paused")
        mode = PauseMode.FULL if memory else PauseMode.FILESYSTEM
        assert (await house.row(record.id)).pause_mode is mode

    async def test_a_timeout_of_zero_pauses_it_at_once(self, house: House) -> None:
        record = await house.create(auto_pause=True)

        await house.system.sandboxes.set_timeout(house.caller, record.id, 0)

        assert await house.state(record.id) == "paused"

    async def test_it_is_there_for_callers_until_it_is_paused(self, house: House) -> None:
        record = await house.create(timeout=60, auto_pause=True)
        house.system._loops[0].cancel()
        house.clock.pass_time(61)

        longer, resumed = await house.connect(record.id, 600)

        assert not resumed
        assert longer.end_at == house.clock.wall() + 600 * 10**9

    async def test_extending_against_its_end_has_one_winner(self, house: House) -> None:
        record = await house.create(timeout=60, auto_pause=True)
        seen = await house.row(record.id)
        await house.system.sandboxes.extend(house.caller, record.id, 600)

        await house.system.sandboxes.expire(seen)

        assert await house.state(record.id) == "running"

    async def test_a_pause_that_fails_is_tried_again_and_nothing_is_killed(
        self, house: House
    ) -> None:
        record = await house.create(timeout=60, auto_pause=True)
        house.node.knobs.pause_errors = [EngineError("busy")]

        house.clock.pass_time(60)
        await until(lambda: house.node.notes)

        assert await house.state(record.id) == "running"
        assert house.node.notes[0][:2] == (record.id, "error")
        house.clock.pass_time(31)
        await until_equal(lambda: house.state(record.id), "paused")

    async def test_on_a_full_disk_it_stays_frozen_in_memory(self, house: House) -> None:
        record = await house.create(timeout=60, auto_pause=True)
        house.node.knobs.pause_errors = [DiskFullError("no room")]

        house.clock.pass_time(60)
        await until_equal(lambda: house.state(record.id), "paused")

        assert record.id in house.node.hot
        row = await house.row(record.id)
        assert row.snapshot_id is None
        assert "memory only" in (row.note or "")
        await until(lambda: house.node.notes)
        assert "disk is full" in house.node.notes[0][2]
        _, resumed = await house.connect(record.id)
        assert resumed
        assert await house.state(record.id) == "running"


class TestExits:
    async def test_a_paused_sandbox_survives_the_loss_of_its_machine(self, house: House) -> None:
        record = await house.create()
        await house.pause(record.id)

        house.node.exit(record.id, code=137)
        await asyncio.sleep(0.05)

        assert await house.state(record.id) == "paused"
        _, resumed = await house.connect(record.id)
        assert resumed

    async def test_one_in_memory_only_does_not(self, house: House) -> None:
        record = await house.create(timeout=60, auto_pause=True)
        house.node.knobs.pause_errors = [DiskFullError("no room")]
        house.clock.pass_time(60)
        await until_equal(lambda: house.state(record.id), "paused")

        house.node.exit(record.id, code=137)

        await until_equal(lambda: house.state(record.id), "killed")
        assert (await house.row(record.id)).end_kind == EndKind.GUEST_EXITED


async def test_what_happened_is_recorded_though_the_catalog_was_full_for_a_while(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await house.create()
    real, failures = snapshots.add, []

    def add(*arguments: object) -> None:
        if len(failures) < 3:
            failures.append(1)
            raise DiskFullError("disk is full")
        real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots, "add", add)
    await house.pause(record.id)

    assert (len(failures), await house.state(record.id)) == (3, "paused")
