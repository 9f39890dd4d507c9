"""Creates from the warm pool: the id comes with the machine, and a claim is used or given back."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.control.houses import House
from tests.fakes.waiting import until, until_equal

from aenv.models.errors import EngineError, InfrastructureError, QuotaExceededError
from aenv.models.ids import new_sandbox_id
from aenv.models.settings import Quotas


def waiting(house: House) -> str:
    """One more machine that waits in the pool."""
    name = new_sandbox_id()
    house.node.knobs.waiting.append(name)
    return name


async def test_the_sandbox_has_the_id_of_the_machine_that_waited(house: House) -> None:
    name = waiting(house)
    first, second = await house.create(), await house.create()

    assert first.id == name
    assert second.id != name
    assert house.node.running[name].access_token == first.access_token


async def test_a_snapshot_has_machines_of_its_own(house: House) -> None:
    source = await house.create()
    kept = await house.snapshot(source.id, "mine")
    name = waiting(house)

    record = await house.create(template="mine")

    assert record.id == name
    assert ("claim", kept.id) in house.node.calls


async def test_forks_claim_nothing(house: House) -> None:
    source = await house.create()
    before = house.node.count("claim")
    waiting(house)

    await house.fork(source.id, count=3)

    assert house.node.count("claim") == before


@pytest.mark.parametrize("error", [EngineError("broken"), TimeoutError()])
async def test_a_pool_that_fails_costs_no_create(house: House, error: Exception) -> None:
    house.node.knobs.claim_error = error

    assert (await house.create()).state == "running"


async def test_a_refused_create_gives_its_claim_back(tmp_path: Path) -> None:
    house = await House(tmp_path, options={"quotas": Quotas(sandboxes=0)}).open()
    name = waiting(house)

    with pytest.raises(QuotaExceededError):
        await house.create()

    assert ("unclaim", name) in house.node.calls
    assert not house.node.count("create")
    await house.system.close()


async def test_who_joins_a_create_gives_its_claim_back(house: House) -> None:
    house.node.knobs.create_gate = asyncio.Event()
    names = [waiting(house), waiting(house)]
    both = [asyncio.create_task(house.create(idempotency_key="k")) for _ in names]
    await until(lambda: house.node.count("create") and house.node.count("unclaim"))
    house.node.knobs.create_gate.set()

    one, two = await asyncio.gather(*both)

    assert one.id == two.id
    assert {name for call, name in house.node.calls if call == "unclaim"} == {*names} - {one.id}


async def test_a_claimed_machine_whose_create_fails_is_destroyed(house: House) -> None:
    name = waiting(house)
    house.node.knobs.create_errors = [RuntimeError("boom")]

    with pytest.raises(InfrastructureError):
        await house.create()

    assert ("destroy", name) in house.node.calls
    assert await house.living() == []


async def test_after_a_crash_a_claim_with_a_row_is_cleared_as_any_half_made_one(
    house: House,
) -> None:
    name = waiting(house)
    house.node.knobs.create_gate = asyncio.Event()
    create = asyncio.create_task(house.create())
    await until(lambda: house.node.count("create"))
    await house.abandon()
    create.cancel()
    house.node.knobs.create_gate = None

    await house.restart()

    await until(lambda: ("destroy", name) in house.node.calls)
    await until_equal(house.living, [])
