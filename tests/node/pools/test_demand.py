"""How many machines should wait, by what was asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from aenv.models.sandboxes import Resources
from aenv.node.pools.demand import BURST, Demand, PoolKey

KEY = PoolKey("base", Resources(), "gvisor")
OTHER = replace(KEY, template="host")


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def demand(clock: Clock) -> Demand:
    return Demand(60.0, clock)


def test_nothing_is_wanted_before_the_first_create(demand: Demand):
    assert (demand.kinds(), demand.wanted(KEY), demand.until_change()) == ([], 0, None)


def test_one_create_wants_one(demand: Demand):
    demand.note(KEY)
    assert demand.wanted(KEY) == 1


def test_creates_at_once_want_as_many(demand: Demand, clock: Clock):
    for _ in range(8):
        demand.note(KEY)
        clock.now += BURST / 8
    assert demand.wanted(KEY) == 8


def test_creates_one_after_the_other_want_one(demand: Demand, clock: Clock):
    for _ in range(8):
        demand.note(KEY)
        clock.now += 2 * BURST
    assert demand.wanted(KEY) == 1


def test_it_falls_with_the_creates_that_are_forgotten(demand: Demand, clock: Clock):
    for _ in range(5):
        demand.note(KEY)
    clock.now += 30
    demand.note(KEY)
    assert demand.until_change() == 30
    clock.now += 30
    assert demand.wanted(KEY) == 1
    clock.now += 30
    assert (demand.wanted(KEY), demand.kinds()) == (0, [])


def test_the_kind_that_was_asked_for_last_comes_first(demand: Demand):
    demand.note(KEY)
    demand.note(OTHER)
    assert demand.kinds() == [OTHER, KEY]
    demand.note(KEY)
    assert demand.kinds() == [KEY, OTHER]


def test_other_resources_are_another_kind(demand: Demand):
    demand.note(KEY)
    assert demand.wanted(replace(KEY, resources=Resources(disk_mb=1234))) == 0


def test_a_flood_is_remembered_within_bounds(demand: Demand):
    for _ in range(10_000):
        demand.note(KEY)
    assert demand.wanted(KEY) <= 256
