"""Real sandboxes on a host that runs out of memory, or is told so, or of disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import pytest
from tests.fakes.waiting import until_equal
from tests.node.timetravel.test_faults import full_disk
from tests.node.timetravel.travel import Guest, Host, new_snapshot_id

from aenv.models.errors import CapacityError, ConflictError, DiskFullError
from aenv.models.snapshots import RestoreMode
from aenv.node.usage import MIB

pytestmark = [pytest.mark.gvisor, pytest.mark.root]


async def paused(host: Host) -> tuple[Guest, str, int]:
    """A guest, its image, and the pid of a counter in it."""
    guest = await host.create()
    await guest.start_counter()
    pid, _ = await guest.count()
    name = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, name)
    return guest, name, pid


async def test_the_longest_paused_give_their_memory_back_and_come_back_whole(host: Host) -> None:
    running = await host.create()
    await running.start_counter()
    sleepers = [await paused(host) for _ in range(3)]
    before = await host.node.memory()
    assert (before.running.sandboxes, before.hot.sandboxes) == (1, 3)
    assert 3 * 5 * MIB < before.hot.used < 3 * 200 * MIB

    with memory_left_until(host, hot=1):
        await host.node._memory.pressure.check()

    after = await host.node.memory()
    assert (after.running.sandboxes, after.hot.sandboxes) == (1, 1)
    assert after.hot.used < before.hot.used / 2
    assert after.relieved == {"hot": 2}
    back = [(await host.resume(guest, name), pid) for guest, name, pid in sleepers]
    modes = [guest.running.restored for guest, _ in back]
    assert modes == [RestoreMode.WARM, RestoreMode.WARM, RestoreMode.HOT]
    for guest, pid in back:
        assert (await guest.count())[0] == pid
    await running.count()


async def test_a_create_that_finds_no_memory_is_told_why_and_succeeds_later(host: Host) -> None:
    running = await host.create()
    with memory_left_until(host, hot=-1):
        await host.node._memory.pressure.check()
        with pytest.raises(CapacityError, match="short of memory"):
            await host.create()
        report = await host.node.memory()
        assert report.exhausted
        assert report.refusals == {"memory": 1}
    await running.sh("true")
    await host.create()
    await host.node._memory.pressure.check()
    assert not (await host.node.memory()).exhausted


async def test_a_create_that_finds_the_pool_of_disks_full_is_told_so_and_succeeds_later(
    host: Host,
) -> None:
    first = await host.create()
    engine = await host.node._engines.get("gvisor")
    room = await engine.disk_room()
    assert room is not None
    pool = host.settings.folders.data / "pool"
    with filled(pool / "filler", room - 200 * MIB):
        with pytest.raises(CapacityError, match=r"short of disk: .* needs 512 MiB"):
            await host.create()
        assert (await host.node.memory()).refusals == {"disk": 1}

    async def roomy() -> bool:
        await host.node.settle(first.spec.sandbox_id)  # btrfs frees with its next transaction
        return (await engine.disk_room() or 0) > 600 * MIB

    await until_equal(roomy, True, timeout=60)
    await host.create()


async def test_what_was_paused_in_memory_alone_is_kept_once_there_is_room(host: Host) -> None:
    guest = await host.create()
    await guest.start_counter()
    pid, _ = await guest.count()
    with full_disk(host):
        with pytest.raises(DiskFullError):
            await host.node.pause(guest.spec.sandbox_id, new_snapshot_id())
        with pytest.raises(DiskFullError):
            await host.node.keep(guest.spec.sandbox_id, new_snapshot_id())
    assert not await host.node.demote(guest.spec.sandbox_id)
    assert await host.disk_images() == []

    name = new_snapshot_id()
    image = await host.node.keep(guest.spec.sandbox_id, name)

    assert image.has_memory
    with pytest.raises(ConflictError):
        await host.node.keep(guest.spec.sandbox_id, new_snapshot_id())
    adoption = await host.restart(paused=(guest.spec,), snapshots={name})
    assert adoption.paused == (guest.spec.sandbox_id,)
    assert await host.node.demote(guest.spec.sandbox_id)
    back = await host.resume(guest, name)
    assert back.running.restored is RestoreMode.WARM
    assert (await back.count())[0] == pid


@contextmanager
def memory_left_until(host: Host, *, hot: int) -> Iterator[None]:
    """The node is told that nothing is left while more than ``hot`` are paused in memory."""
    memory = host.node._memory
    measure, available = memory.admission._measure, memory.pressure._available

    def look():  # type: ignore[no-untyped-def]
        found = measure()
        held = sum(one.hot is not None for one in host.node._residents)
        return replace(found, memory=1) if held > hot else found

    memory.admission._measure, memory.pressure._available = look, lambda: look().memory
    try:
        yield
    finally:
        memory.admission._measure, memory.pressure._available = measure, available


@contextmanager
def filled(path: os.PathLike[str], size: int) -> Iterator[None]:
    """A file of so many bytes, allocated and not written."""
    handle = os.open(path, os.O_CREAT | os.O_WRONLY, 0o600)
    try:
        os.posix_fallocate(handle, 0, size)
        os.fsync(handle)
        yield
    finally:
        os.close(handle)
        os.unlink(path)
