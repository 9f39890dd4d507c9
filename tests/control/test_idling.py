"""A server started on demand ends when nobody needs it, and not before."""

from __future__ import annotations

import asyncio

import pytest
from tests.control.houses import House
from tests.fakes.waiting import until

from aenv.control.idling import IdleWatch


@pytest.fixture
async def watch(house: House, monkeypatch: pytest.MonkeyPatch) -> IdleWatch:
    """Its sleeps take no time: time passes by the house's clock alone."""
    real = asyncio.sleep
    monkeypatch.setattr("aenv.control.idling.asyncio.sleep", lambda _: real(0.001))
    return IdleWatch(house.system.catalog, house.system.activity, 60, house.system.stop.set)


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
