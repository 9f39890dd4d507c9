"""Who may boot now, on a host whose free memory and disk a test sets."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from tests.fakes.waiting import until

from aenv.models.errors import CapabilityError, CapacityError
from aenv.models.sandboxes import Resources
from aenv.node.admission import Admission, Bounds, Demand
from aenv.node.hosts import Headroom, measure_headroom
from aenv.node.usage import MIB

ROOMY = 1 << 50


@dataclass
class Ledger:
    """A book in which every new sandbox is expected to use its whole limit, unless ``typical``."""

    typical_mb: int | None = None
    owed_mb: int = 0
    promised_mb: int = 0
    refreshed: int = 0

    def expected(self, template: str, resources: Resources, image: int = 0) -> int:
        limit = resources.memory_mb
        return min(limit, limit if self.typical_mb is None else self.typical_mb) * MIB

    def owed(self) -> int:
        return self.owed_mb * MIB

    def promised(self) -> int:
        return self.promised_mb * MIB

    async def refresh(self) -> None:
        self.refreshed += 1


def admission(
    memory_mb: int = 4096,
    *,
    disk_mb: int | None = None,
    boots: int = 100,
    patience: float = 5,
    book: Ledger | None = None,
    total_mb: int = 1 << 24,
    overcommit: float = 10,
    suffers: str | None = None,
) -> Admission:
    left = Headroom(memory_mb * MIB, ROOMY if disk_mb is None else disk_mb * MIB)
    bounds = Bounds(
        memory_reserve=1024 * MIB,
        disk_reserve=1024 * MIB,
        total=total_mb * MIB,
        overcommit=overcommit,
        boots=boots,
        patience=patience,
    )
    return Admission(lambda: left, bounds, book or Ledger(), suffers=lambda: suffers)


def of(**resources: int) -> Demand:
    return Demand("base", Resources(**resources))


async def test_the_reserve_is_never_given_away():
    gate = admission(memory_mb=2048)
    async with gate.admit(of(memory_mb=1024)):
        pass
    with pytest.raises(CapacityError, match="needs 1025 MiB, 2048 MiB are available and 1024"):
        async with gate.admit(of(memory_mb=1025)):
            pass
    assert gate.refusals == {"memory": 1}


async def test_what_is_measured_counts_and_not_the_limit():
    gate = admission(memory_mb=1100, book=Ledger(typical_mb=60))
    async with gate.admit(of(memory_mb=8192)):
        pass
    with pytest.raises(CapacityError, match="needs 77 MiB"):
        async with admission(memory_mb=1100, book=Ledger(typical_mb=77)).admit(of()):
            pass


async def test_a_limit_beyond_the_hosts_memory_is_refused_for_good():
    gate = admission(total_mb=2048, book=Ledger(typical_mb=60))
    async with gate.admit(of(memory_mb=2048)):
        pass
    with pytest.raises(CapabilityError, match="2049 MiB cannot run on this host, which has 2048"):
        async with gate.admit(of(memory_mb=2049)):
            pass
    assert gate.refusals == {"too_large": 1}


async def test_limits_together_exceed_the_host_up_to_a_factor():
    book = Ledger(typical_mb=60, promised_mb=3000)
    gate = admission(total_mb=2048, overcommit=2, book=book)
    async with gate.admit(of(memory_mb=1000)):
        book.promised_mb = 4000
    with pytest.raises(CapacityError, match=r"promised 4000 MiB of memory.*memory_overcommit"):
        async with gate.admit(of(memory_mb=100)):
            pass
    assert gate.refusals == {"overcommit": 1}


async def test_those_that_have_just_started_may_still_grow():
    book = Ledger(owed_mb=500)
    with pytest.raises(CapacityError, match="500 MiB are set aside"):
        async with admission(memory_mb=2048, book=book).admit(of(memory_mb=1024)):
            pass
    assert book.refreshed == 1


async def test_a_host_that_suffers_takes_nobody_whatever_is_available():
    gate = admission(suffers="tasks wait for memory")
    with pytest.raises(CapacityError, match="tasks wait for memory") as refused:
        async with gate.admit(of(memory_mb=64)):
            pass
    assert refused.value.retry_after
    assert gate.refusals == {"pressure": 1}


async def test_a_disk_is_thin_but_needs_some_room():
    async with admission(disk_mb=2048).admit(of(disk_mb=1 << 20)):
        pass
    gate = admission(disk_mb=1100)
    with pytest.raises(CapacityError, match="short of disk"):
        async with gate.admit(of(disk_mb=1 << 20)):
            pass
    assert gate.refusals == {"disk": 1}


async def test_a_pool_of_disks_counts_instead_of_the_hosts_disk():
    async def roomy() -> int:
        return 600 * MIB

    async def full() -> int:
        return 100 * MIB

    async with admission(disk_mb=0).admit(of(), roomy):
        pass
    with pytest.raises(CapacityError, match=r"short of disk: .* 100 MiB are available"):
        async with admission().admit(of(), full):
            pass


async def test_creates_in_flight_hold_what_they_were_promised_and_others_wait():
    gate = admission(memory_mb=4096)
    release = asyncio.Event()
    admitted: list[int] = []

    async def create(number: int) -> None:
        async with gate.admit(of(memory_mb=1024)):
            admitted.append(number)
            await release.wait()

    creates = [asyncio.create_task(create(number)) for number in range(5)]
    await until(lambda: len(admitted) == 3)
    await asyncio.sleep(0)
    assert admitted == [0, 1, 2]
    release.set()
    await asyncio.gather(*creates)
    assert admitted == [0, 1, 2, 3, 4]


async def test_no_more_boots_at_a_time_than_the_host_can_work_on():
    gate = admission(memory_mb=1 << 20, boots=2)
    most = running = 0

    async def create() -> None:
        nonlocal most, running
        async with gate.admit(of()):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(create() for _ in range(10)))
    assert most == 2


async def test_refusals_are_logged_once_a_while_by_reason(caplog: pytest.LogCaptureFixture):
    full, crowded = admission(memory_mb=1), admission(disk_mb=1)
    for gate in (full, full, crowded):
        with pytest.raises(CapacityError):
            async with gate.admit(of()):
                pass
    said = [record.getMessage().partition(":")[0] for record in caplog.records]
    assert said == ["a create was refused (memory)", "a create was refused (disk)"]
    assert full.refusals == {"memory": 2}


async def test_waiting_ends_in_a_refusal_that_can_be_retried():
    gate = admission(memory_mb=2048, patience=0.05)
    async with gate.admit(of(memory_mb=1024)):
        with pytest.raises(CapacityError, match="1 sandboxes are being started") as refused:
            async with gate.admit(of(memory_mb=1024)):
                pass
    assert refused.value.retry_after
    assert gate.refusals == {"busy": 1}
    async with gate.admit(of(memory_mb=1024)):
        pass


async def test_a_waiter_that_gives_up_holds_nothing():
    gate = admission(memory_mb=2048)
    async with gate.admit(of(memory_mb=1024)):
        waiter = asyncio.create_task(gate.admit(of(memory_mb=1024)).__aenter__())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    async with gate.admit(of(memory_mb=1024)):
        pass


def test_this_host_has_memory_and_disk(tmp_path):
    left = measure_headroom(tmp_path / "not" / "there")
    assert left.memory > MIB
    assert left.disk > 0
