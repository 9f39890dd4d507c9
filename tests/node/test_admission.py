"""Who may boot now, on a host whose free memory and disk a test sets."""

from __future__ import annotations

import asyncio

import pytest
from tests.fakes.waiting import until

from aenv.models.errors import CapacityError
from aenv.models.sandboxes import Resources
from aenv.node.admission import MIB, Admission
from aenv.node.hosts import Headroom, measure_headroom

ROOMY = 1 << 50


def admission(
    memory_mb: int = 4096, *, disk_mb: int | None = None, boots: int = 100, patience: float = 5
) -> Admission:
    left = Headroom(memory_mb * MIB, ROOMY if disk_mb is None else disk_mb * MIB)
    return Admission(
        lambda: left,
        memory_reserve=1024 * MIB,
        disk_reserve=1024 * MIB,
        boots=boots,
        patience=patience,
    )


async def test_the_reserve_is_never_given_away():
    gate = admission(memory_mb=2048)
    async with gate.admit(Resources(memory_mb=1024)):
        pass
    with pytest.raises(CapacityError, match="needs 1025 MiB, 2048 MiB are available and 1024"):
        async with gate.admit(Resources(memory_mb=1025)):
            pass


async def test_a_disk_is_thin_but_needs_some_room():
    async with admission(disk_mb=2048).admit(Resources(disk_mb=1 << 20)):
        pass
    with pytest.raises(CapacityError, match="short of disk"):
        async with admission(disk_mb=1100).admit(Resources(disk_mb=1 << 20)):
            pass


async def test_a_pool_of_disks_counts_instead_of_the_hosts_disk():
    async def roomy() -> int:
        return 600 * MIB

    async def full() -> int:
        return 100 * MIB

    async with admission(disk_mb=0).admit(Resources(), roomy):
        pass
    with pytest.raises(CapacityError, match=r"short of disk: .* 100 MiB are available"):
        async with admission().admit(Resources(), full):
            pass


async def test_creates_in_flight_hold_what_they_were_promised_and_others_wait():
    gate = admission(memory_mb=4096)
    release = asyncio.Event()
    admitted: list[int] = []

    async def create(number: int) -> None:
        async with gate.admit(Resources(memory_mb=1024)):
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
        async with gate.admit(Resources()):
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1

    await asyncio.gather(*(create() for _ in range(10)))
    assert most == 2


async def test_waiting_ends_in_a_refusal_that_can_be_retried():
    gate = admission(memory_mb=2048, patience=0.05)
    async with gate.admit(Resources(memory_mb=1024)):
        with pytest.raises(CapacityError, match="1 sandboxes are being started") as refused:
            async with gate.admit(Resources(memory_mb=1024)):
                pass
    assert refused.value.retry_after
    async with gate.admit(Resources(memory_mb=1024)):
        pass


async def test_a_waiter_that_gives_up_holds_nothing():
    gate = admission(memory_mb=2048)
    async with gate.admit(Resources(memory_mb=1024)):
        waiter = asyncio.create_task(gate.admit(Resources(memory_mb=1024)).__aenter__())
        await asyncio.sleep(0)
        waiter.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiter
    async with gate.admit(Resources(memory_mb=1024)):
        pass


def test_this_host_has_memory_and_disk(tmp_path):
    left = measure_headroom(tmp_path / "not" / "there")
    assert left.memory > MIB
    assert left.disk > 0
