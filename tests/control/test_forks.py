"""Live snapshots and forks against everything else that happens to their source."""

from __future__ import annotations

import asyncio

import pytest
from tests.control.gates import FakeGate
from tests.control.houses import House
from tests.fakes.waiting import until, until_equal

from aenv.control.visitors import Visitor
from aenv.models.errors import (
    CapabilityError,
    ConflictError,
    DiskFullError,
    GuestUnresponsiveError,
    SandboxNotFoundError,
)
from aenv.store import snapshots
from aenv.store.records import SandboxRecord


async def test_requests_are_held_only_while_the_source_is_frozen(house: House) -> None:
    gate = FakeGate()
    house.system.doors.attach(gate)
    record = await house.create()
    house.node.knobs.snapshot_gate = asyncio.Event()

    taking = asyncio.create_task(house.snapshot(record.id))
    await until(lambda: record.id in house.node.frozen)
    assert gate.held == {record.id}
    house.node.knobs.snapshot_gate.set()
    await taking

    assert gate.held == set()
    assert await house.state(record.id) == "running"
    calls = [call for call, _ in house.node.calls if call in ("settle", "snapshot")]
    assert calls == ["settle", "snapshot"]


async def test_requests_go_on_before_the_image_of_their_sandbox_is_on_disk(house: House) -> None:
    gate = FakeGate()
    house.system.doors.attach(gate)
    record = await house.create()
    house.node.knobs.publish_gate = asyncio.Event()

    taking = asyncio.create_task(house.snapshot(record.id))
    await until(lambda: house.node.count("snapshot") and not gate.held)

    assert not taking.done()
    assert house.node.images == {}
    house.node.knobs.publish_gate.set()
    kept = await taking
    assert set(house.node.images) == {kept.id}


@pytest.mark.parametrize("error", [DiskFullError("no room"), CapabilityError("cannot")])
async def test_a_snapshot_that_fails_leaves_nothing(house: House, error: Exception) -> None:
    gate = FakeGate()
    house.system.doors.attach(gate)
    record = await house.create()
    house.node.knobs.snapshot_errors = [error]

    with pytest.raises(type(error)):
        await house.snapshot(record.id)

    assert gate.held == set()
    assert house.node.images == {}
    assert await house.system.catalog.read(snapshots.needed) == frozenset()
    assert await house.state(record.id) == "running"


async def test_an_agent_that_does_not_answer_is_not_copied(house: House) -> None:
    record = await house.create()
    house.node.knobs.mute.add(record.id)

    with pytest.raises(GuestUnresponsiveError):
        await house.snapshot(record.id)


async def test_killing_the_source_while_it_is_copied_leaves_nothing(house: House) -> None:
    record = await house.create()
    house.node.knobs.snapshot_gate = asyncio.Event()
    forking = asyncio.create_task(house.fork(record.id, 3))
    await until(lambda: house.node.count("snapshot"))

    await house.system.sandboxes.kill(house.caller, record.id)

    with pytest.raises(SandboxNotFoundError):
        await forking
    assert house.node.running == {}
    await until(lambda: not house.node.images)


async def test_killing_the_source_after_it_was_copied_costs_no_child(house: House) -> None:
    record = await house.create()
    house.node.knobs.create_gate = asyncio.Event()
    forking = asyncio.create_task(house.fork(record.id, 3))
    await until(lambda: house.node.count("create") == 4)

    await house.system.sandboxes.kill(house.caller, record.id)
    house.node.knobs.create_gate.set()

    children = await forking
    assert len(children) == 3
    assert all(isinstance(child, SandboxRecord) for child in children)
    assert len(house.node.running) == 3
    await until(lambda: not house.node.images)


async def test_a_fork_of_a_killed_one_is_not_found(house: House) -> None:
    record = await house.create()
    await house.system.sandboxes.kill(house.caller, record.id)

    with pytest.raises(SandboxNotFoundError):
        await house.fork(record.id)


async def test_pausing_while_it_is_copied_pauses_it_after(house: House) -> None:
    record = await house.create()
    house.node.knobs.snapshot_gate = asyncio.Event()
    taking = asyncio.create_task(house.snapshot(record.id))
    await until(lambda: house.node.count("snapshot"))
    pausing = asyncio.create_task(house.pause(record.id))
    await asyncio.sleep(0.02)
    assert house.node.count("pause") == 0

    house.node.knobs.snapshot_gate.set()

    await taking
    await pausing
    assert await house.state(record.id) == "paused"


async def test_a_copy_asked_for_while_it_pauses_is_refused(house: House) -> None:
    record = await house.create()
    house.node.knobs.pause_gate = asyncio.Event()
    pausing = asyncio.create_task(house.pause(record.id))
    await until(lambda: house.node.count("pause"))
    forking = asyncio.create_task(house.fork(record.id))
    await asyncio.sleep(0.02)

    house.node.knobs.pause_gate.set()

    await pausing
    with pytest.raises(ConflictError, match="paused"):
        await forking


async def test_two_copies_at_once_follow_each_other(house: House) -> None:
    record = await house.create()

    one, other = await asyncio.gather(house.snapshot(record.id), house.snapshot(record.id))

    assert one.id != other.id
    assert set(house.node.images) == {one.id, other.id}


async def test_its_end_waits_until_it_is_copied(house: House) -> None:
    record = await house.create(timeout=60, auto_pause=True)
    house.node.knobs.snapshot_gate = asyncio.Event()
    taking = asyncio.create_task(house.snapshot(record.id))
    await until(lambda: house.node.count("snapshot"))
    house.clock.pass_time(60)
    await asyncio.sleep(0.05)
    assert await house.state(record.id) == "running"

    house.node.knobs.snapshot_gate.set()

    await taking
    await until_equal(lambda: house.state(record.id), "paused")


async def test_a_child_pauses_and_resumes_as_its_source_would(house: House) -> None:
    record = await house.create(timeout=60, auto_pause=True, auto_resume=True)

    (child,) = await house.fork(record.id, timeout=10)

    assert isinstance(child, SandboxRecord)
    house.clock.pass_time(10)
    await until_equal(lambda: house.state(child.id), "paused")
    assert await house.state(record.id) == "running"
    assert await house.system.sandboxes.wake(child.id, Visitor(8000))


async def test_a_caller_who_hangs_up_leaves_no_image(house: House) -> None:
    record = await house.create()
    house.node.knobs.create_gate = asyncio.Event()
    forking = asyncio.create_task(house.fork(record.id, 2))
    await until(lambda: house.node.count("create") == 3)

    forking.cancel()
    house.node.knobs.create_gate.set()

    await until(lambda: not house.node.images)
    assert len(house.node.running) == 3


async def test_the_snapshot_of_a_sandbox_outlives_it(house: House) -> None:
    record = await house.create()
    kept = await house.snapshot(record.id, "mine")

    await house.system.sandboxes.kill(house.caller, record.id)

    child = await house.create(template="mine")
    assert (child.parent_snapshot, child.parent_sandbox) == (kept.id, record.id)
