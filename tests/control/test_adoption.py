"""kill -9 at any moment, and start again: what runs is kept, the rest is finished off."""

from __future__ import annotations

import asyncio

import pytest
from tests.control.houses import House
from tests.fakes.waiting import until, until_equal

from aenv.models.errors import HostSetupError
from aenv.models.sandboxes import Culprit, EndKind, SandboxExit


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


async def test_a_machine_that_is_gone_has_failed(house: House) -> None:
    record = await house.create()
    await house.abandon()
    house.node.running.clear()

    await house.restart()

    await until_equal(lambda: house.state(record.id), "failed")
    assert (await house.row(record.id)).end_kind == EndKind.INFRASTRUCTURE


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
