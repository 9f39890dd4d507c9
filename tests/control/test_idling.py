"""A server started on demand ends when nobody needs it, and not before."""

from __future__ import annotations

import asyncio

import pytest
from tests.control.houses import House
from tests.fakes.waiting import until, until_equal

from aenv.control.idling import IdleWatch
from aenv.models.errors import DiskFullError


@pytest.fixture
async def watch(house: House, monkeypatch: pytest.MonkeyPatch) -> IdleWatch:
    """Its sleeps take no time: time passes by the house's clock alone."""
    real = asyncio.sleep
    monkeypatch.setattr("aenv.control.idling.asyncio.sleep", lambda _: real(0.001))
    system = house.system
    return IdleWatch(system.catalog, system.node, system.activity, 60, system.stop.set)


async def test_it_stops_after_the_time_without_use(house: House, watch: IdleWatch) -> None:
    running = asyncio.create_task(watch.run())
    house.clock.pass_time(59)
    await asyncio.sleep(0.02)
    assert not house.system.stop.is_set()

    house.clock.pass_time(1)
    await until(house.system.stop.is_set)
    await running


async def test_a_request_begins_the_time_anew(house: House, watch: IdleWatch) -> None:
    running = asyncio.create_task(watch.run())
    house.clock.pass_time(50)
    house.system.activity.begin()
    house.clock.pass_time(1000)
    await asyncio.sleep(0.02)
    assert not house.system.stop.is_set(), "a request is open"
    house.system.activity.finish()

    house.clock.pass_time(59)
    await asyncio.sleep(0.02)
    assert not house.system.stop.is_set()
    house.clock.pass_time(1)
    await until(house.system.stop.is_set)
    await running


async def test_a_sandbox_keeps_it_alive(house: House, watch: IdleWatch) -> None:
    record = await house.create(timeout=10_000)
    running = asyncio.create_task(watch.run())
    house.clock.pass_time(1000)
    await asyncio.sleep(0.05)
    assert not house.system.stop.is_set()

    await house.system.sandboxes.kill(house.caller, record.id)
    house.clock.pass_time(61)
    await until(house.system.stop.is_set)
    await running


async def test_a_paused_sandbox_needs_none_and_gives_its_memory_back(
    house: House, watch: IdleWatch
) -> None:
    record = await house.create(timeout=10_000)
    await house.pause(record.id)
    assert house.node.hot
    running = asyncio.create_task(watch.run())

    house.clock.pass_time(61)

    await until(house.system.stop.is_set)
    await running
    assert house.node.hot == {}
    await house.abandon()
    await house.restart()
    assert await house.state(record.id) == "paused"
    assert (await house.connect(record.id))[0].restored == "warm"


async def test_one_that_traffic_is_to_wake_keeps_it_alive(house: House, watch: IdleWatch) -> None:
    record = await house.create(timeout=10_000, auto_pause=True, auto_resume=True)
    await house.pause(record.id)
    running = asyncio.create_task(watch.run())
    house.clock.pass_time(1000)
    await asyncio.sleep(0.05)
    assert not house.system.stop.is_set()
    assert record.id in house.node.hot
    running.cancel()


async def test_one_that_is_in_memory_alone_keeps_it_alive(house: House, watch: IdleWatch) -> None:
    record = await house.create(timeout=60, auto_pause=True)
    house.node.knobs.pause_errors = [DiskFullError("no room")]
    house.clock.pass_time(60)
    await until_equal(lambda: house.state(record.id), "paused")
    running = asyncio.create_task(watch.run())
    house.clock.pass_time(1000)
    await asyncio.sleep(0.05)
    assert not house.system.stop.is_set()
    running.cancel()


async def test_one_that_is_resumed_meanwhile_keeps_it_alive(house: House, watch: IdleWatch) -> None:
    record = await house.create(timeout=10_000)
    await house.pause(record.id)
    demote = house.node.demote

    async def connected_first(sandbox_id: str) -> bool:
        await house.connect(sandbox_id, 10_000)
        return await demote(sandbox_id)

    house.node.demote = connected_first  # type: ignore[method-assign]
    running = asyncio.create_task(watch.run())
    house.clock.pass_time(61)
    await until_equal(lambda: house.state(record.id), "running")
    await asyncio.sleep(0.05)
    assert not house.system.stop.is_set()
    running.cancel()
