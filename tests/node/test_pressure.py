"""Giving memory back: when, how much, in what order, on a host whose figures a test sets."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aenv.models.errors import EngineError
from aenv.node.pressure import Marks, Pressure
from aenv.node.stalls import StallMeter

MARKS = Marks(low=100, high=200)


@dataclass
class Host:
    """``pooled`` and ``hot`` give back their first number; what is ``available`` grows by it."""

    folder: Path
    available: int = 1000
    pooled: list[int] = field(default_factory=list)
    hot: list[int] = field(default_factory=list)
    looks: int = 0
    now: float = 0.0
    stalled_us: int = 0
    broken: bool = False

    @property
    def pressure(self) -> Pressure:
        self.tell_stalls(0)
        stalls = StallMeter(self.folder / "memory", lambda: self.now)
        stalls.read()
        relievers = {"pooled": self._give_pooled, "hot": self._give_hot}
        return Pressure(self._look, stalls, relievers, MARKS)

    def tell_stalls(self, percent: int) -> None:
        """In the second until the next look."""
        self.now += 1
        self.stalled_us += percent * 10_000
        text = f"some avg10=0.00 avg60=0.00 avg300=0.00 total={self.stalled_us}\nfull total=0\n"
        (self.folder / "memory").write_text(text)

    def _look(self) -> int:
        self.looks += 1
        return self.available

    async def _give_pooled(self) -> bool:
        if self.broken:
            raise EngineError("the pool is broken")
        return self._give(self.pooled)

    async def _give_hot(self) -> bool:
        return self._give(self.hot)

    def _give(self, held: list[int]) -> bool:
        if not held:
            return False
        self.available += held.pop(0)
        return True


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


async def test_with_memory_to_spare_nothing_is_taken(host: Host):
    host.hot = [50]
    pressure = host.pressure
    await pressure.check()
    assert (host.hot, host.looks) == ([50], 1)


async def test_giving_back_begins_at_the_low_mark_and_ends_at_the_high_one(host: Host):
    pressure = host.pressure
    host.available, host.hot = 100, [50] * 5
    await pressure.check()
    assert len(host.hot) == 5
    host.available = 99
    await pressure.check()
    assert (host.available, len(host.hot)) == (249, 2)
    host.available = 150
    await pressure.check()
    assert len(host.hot) == 2
    assert not pressure.exhausted


async def test_no_more_is_taken_than_is_needed(host: Host):
    host.available, host.hot = 50, [500, 1, 1]
    pressure = host.pressure
    await pressure.check()
    assert host.hot == [1, 1]
    assert pressure.relieved == {"hot": 1}


async def test_pools_give_before_paused_sandboxes_do(host: Host):
    host.available, host.pooled, host.hot = 50, [60, 60], [60, 60]
    pressure = host.pressure
    await pressure.check()
    assert (host.pooled, host.hot) == ([], [60])
    assert pressure.relieved == {"pooled": 2, "hot": 1}


async def test_a_reliever_that_fails_does_not_stop_the_next(host: Host):
    host.available, host.hot, host.broken = 50, [500], True
    pressure = host.pressure
    await pressure.check()
    assert host.hot == []
    assert not pressure.exhausted


async def test_nothing_left_is_said_once_and_so_is_its_end(
    host: Host, caplog: pytest.LogCaptureFixture
):
    caplog.set_level(logging.WARNING)
    host.available, host.hot = 50, [20]
    pressure = host.pressure
    for _ in range(3):
        await pressure.check()
    assert pressure.exhausted
    assert pressure.suffering() is None  # the reserve decides, while nobody waits
    assert len(caplog.records) == 1
    host.available = 150
    await pressure.check()
    assert pressure.exhausted
    host.available = 200
    await pressure.check()
    assert not pressure.exhausted
    assert [record.message.partition(":")[0] for record in caplog.records][-1] == (
        "the host has memory again"
    )
    assert len(caplog.records) == 2


async def test_while_tasks_wait_one_is_given_back_at_a_time_and_sooner(host: Host):
    host.available, host.hot = 300, [10, 10]
    pressure = host.pressure
    host.tell_stalls(9)
    await pressure.check()
    assert len(host.hot) == 2
    for left in (1, 0):
        host.tell_stalls(50)
        await pressure.check()
        assert len(host.hot) == left
    assert pressure.suffering() is None
    host.tell_stalls(50)
    await pressure.check()
    assert "50 % of the time" in (pressure.suffering() or "")
    host.tell_stalls(0)
    await pressure.check()
    assert pressure.suffering() is None


async def test_waiting_is_no_reason_where_memory_abounds(host: Host):
    """A guest at its own limit waits, too."""
    host.available, host.hot = 1000, [10]
    pressure = host.pressure
    host.tell_stalls(90)
    await pressure.check()
    assert host.hot == [10]
    assert pressure.suffering() is None


def test_a_kernel_that_does_not_tell_is_not_guessed(tmp_path: Path):
    meter = StallMeter(tmp_path / "absent")
    assert (meter.read(), meter.read(), meter.share) == (None, None, None)
    assert not meter.told


def test_the_first_reading_has_no_window(host: Host):
    host.tell_stalls(30)
    meter = StallMeter(host.folder / "memory", lambda: host.now)
    assert meter.read() is None
    host.tell_stalls(25)
    assert meter.read() == pytest.approx(0.25)
