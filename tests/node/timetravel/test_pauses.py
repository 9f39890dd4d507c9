"""Pausing and resuming real sandboxes: what comes back, how, and at whose cost."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace

import pytest
from tests.fakes.waiting import until, until_equal
from tests.node.timetravel.travel import Host, new_snapshot_id

from aenv.models.errors import ConflictError, EngineError, NotFoundError
from aenv.models.snapshots import RestoreMode
from aenv.node.launches import ENV_UNKNOWN
from aenv.node.usage import MIB

pytestmark = [pytest.mark.gvisor, pytest.mark.root]


async def test_a_hot_resume_goes_on_where_it_was(host: Host) -> None:
    guest = await host.create(env_vars={"A": "1"})
    await guest.start_counter()
    boot = await guest.sh("cat /proc/sys/kernel/random/boot_id; hostname")
    name = new_snapshot_id()

    image = await host.node.pause(guest.spec.sandbox_id, name)

    assert image.has_memory
    assert image.memory_bytes > 1_000_000
    assert [one.id for one in await host.node.snapshots()] == [name]
    back = await host.resume(guest, name)
    assert back.running.restored is RestoreMode.HOT
    pid, count = await back.count()
    await back.sh(f"until [ $(cut -d' ' -f2 /root/count) -gt {count} ]; do sleep 0.01; done")
    assert (await back.count())[0] == pid
    assert await back.sh("cat /proc/sys/kernel/random/boot_id; hostname") == boot
    assert await back.sh("echo $A") == "1"


async def test_a_warm_resume_goes_on_where_it_was(host: Host) -> None:
    guest = await host.create(env_vars={"A": "1"})
    await guest.start_counter()
    boot = await guest.sh("cat /proc/sys/kernel/random/boot_id; hostname")
    name = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, name)

    assert await host.node.demote(guest.spec.sandbox_id)
    assert not await host.node.demote(guest.spec.sandbox_id)
    back = await host.resume(guest, name)

    assert back.running.restored is RestoreMode.WARM
    assert back.running.note is None
    pid, count = await back.count()
    await back.sh(f"until [ $(cut -d' ' -f2 /root/count) -gt {count} ]; do sleep 0.01; done")
    assert (await back.count())[0] == pid
    assert await back.sh("cat /proc/sys/kernel/random/boot_id; hostname") == boot
    assert await back.sh("echo $A") == "1"


async def test_a_pause_without_memory_boots_from_the_disk(host: Host) -> None:
    guest = await host.create(env_vars={"A": "1"})
    await guest.start_counter()
    await guest.sh("echo kept > /root/file")
    boot = await guest.sh("cat /proc/sys/kernel/random/boot_id")
    name = new_snapshot_id()

    image = await host.node.pause(guest.spec.sandbox_id, name, memory=False)
    assert (image.has_memory, image.memory_bytes) == (False, 0)
    back = await host.resume(guest, name)

    assert back.running.restored is RestoreMode.DISK
    assert await back.sh("cat /root/file") == "kept"
    assert await back.sh("cat /proc/sys/kernel/random/boot_id") != boot
    assert await back.sh("pgrep -f [r]oot/count || echo none") == "none"
    assert await back.sh("echo $A") == "1"


async def test_a_snapshot_of_a_running_sandbox_starts_others(host: Host) -> None:
    guest = await host.create(env_vars={"A": "1", "SECRET": "x"}, secret_env=frozenset({"SECRET"}))
    await guest.start_counter()
    name = new_snapshot_id()

    await host.node.snapshot(guest.spec.sandbox_id, name)
    pid, count = await guest.count()
    children = await asyncio.gather(
        *(host.create(snapshot=name, env_vars={"B": str(n)}) for n in range(4))
    )

    assert await guest.sh("echo $A $SECRET") == "1 x"
    for number, child in enumerate(children):
        assert child.running.restored is RestoreMode.WARM
        assert (await child.count())[0] == pid
        assert await child.sh("echo $A-$B-$SECRET") == f"1-{number}-"
        assert await child.sh("hostname") == child.spec.sandbox_id
    ids = [await one.sh("cat /proc/sys/kernel/random/boot_id") for one in (guest, *children)]
    assert len(set(ids)) == 5
    await host.node.delete_snapshot(name)
    await host.node.delete_snapshot(name)
    assert await host.node.snapshots() == []
    assert (await children[0].count())[1] >= count
    with pytest.raises(NotFoundError):
        await host.create(snapshot=name)


async def test_ten_pauses_with_changes_between_lose_nothing(host: Host) -> None:
    guest = await host.create()
    await guest.start_counter()
    pid, _ = await guest.count()
    former = None
    for turn in range(10):
        await guest.sh(f"echo {turn} >> /root/turns; head -c 1000000 /dev/urandom > /root/{turn}")
        sums = await guest.sh("md5sum /root/[0-9]")
        name = new_snapshot_id()
        await host.node.pause(guest.spec.sandbox_id, name)
        if turn % 3:
            await host.node.demote(guest.spec.sandbox_id)
        guest = await host.resume(guest, name)
        if former:
            await host.node.delete_snapshot(former)
        former = name
        assert await guest.sh("md5sum /root/[0-9]") == sums
    assert (await guest.sh("cat /root/turns")).split() == [str(turn) for turn in range(10)]
    assert (await guest.count())[0] == pid


async def test_ten_pauses_of_all_kinds_lose_nothing_and_leave_no_images(host: Host) -> None:
    guest = await host.create()
    engine = await host.node._engines.get("gvisor")
    whom, rooms = guest.spec.sandbox_id, []
    for turn in range(10):
        await guest.start_counter()
        pid, _ = await guest.count()
        await guest.sh(f"echo {turn} >> /root/turns; head -c 12M /dev/urandom > /root/big")
        sums = await guest.sh("md5sum /root/big /root/turns")
        name, kind = new_snapshot_id(), ("hot", "warm", "disk")[turn % 3]
        await host.node.pause(whom, name, memory=kind != "disk")
        if kind == "warm":
            await host.node.demote(whom)

        guest = await host.resume(guest, name)
        await host.node.delete_snapshot(name)

        assert guest.running.restored == kind
        assert await guest.sh("md5sum /root/big /root/turns") == sums
        if kind != "disk":
            assert (await guest.count())[0] == pid
        await guest.sh("pkill -f [r]oot/count || true")
        await guest.sh("rm -f /root/count")
        assert await host.disk_images() == []
        assert list((host.settings.folders.data / "snapshots").iterdir()) == []
        rooms.append(await engine.disk_room() or 0)
    assert (await guest.sh("cat /root/turns")).split() == [str(turn) for turn in range(10)]

    async def freed() -> bool:
        await host.node.settle(whom)  # btrfs frees with its next transaction
        return (await engine.disk_room() or 0) > max(rooms) - 40 * MIB

    await until_equal(freed, True, timeout=60)


async def test_pausing_and_resuming_twice_has_one_outcome(host: Host) -> None:
    guest = await host.create()
    first, second = new_snapshot_id(), new_snapshot_id()
    outcomes = await asyncio.gather(
        *(host.node.pause(guest.spec.sandbox_id, name) for name in (first, second)),
        return_exceptions=True,
    )
    assert [isinstance(outcome, ConflictError) for outcome in outcomes] == [False, True]
    with pytest.raises(ConflictError, match="paused"):
        await host.node.snapshot(guest.spec.sandbox_id, second)

    resumes = await asyncio.gather(
        host.resume(guest, first), host.resume(guest, first), return_exceptions=True
    )

    assert [isinstance(outcome, ConflictError) for outcome in resumes] == [False, True]
    assert await guest.sh("echo alive") == "alive"


@pytest.mark.parametrize("delay", [0, 0.02, 0.06])
async def test_a_sandbox_killed_while_it_is_paused_is_gone(host: Host, delay: float) -> None:
    guest = await host.create()
    pause = asyncio.create_task(host.node.pause(guest.spec.sandbox_id, new_snapshot_id()))
    await asyncio.sleep(delay)
    await host.node.destroy(guest.spec.sandbox_id)

    outcome = (await asyncio.gather(pause, return_exceptions=True))[0]

    assert not isinstance(outcome, BaseException) or isinstance(
        outcome, EngineError | ConflictError | NotFoundError
    )
    with pytest.raises(NotFoundError):
        await host.resume(guest, None)


async def test_a_cancelled_pause_did_not_happen(host: Host) -> None:
    guest = await host.create()
    await guest.start_counter()
    for delay in (0.001, 0.02, 0.05):
        pause = asyncio.create_task(host.node.pause(guest.spec.sandbox_id, new_snapshot_id()))
        await asyncio.sleep(delay)
        pause.cancel()
        outcome = (await asyncio.gather(pause, return_exceptions=True))[0]
        if isinstance(outcome, asyncio.CancelledError):
            _, count = await guest.count()
            await guest.sh(f"until [ $(cut -d' ' -f2 /root/count) -gt {count} ]; do :; done")
        else:
            await host.resume(guest, None)


@pytest.mark.parametrize("file", ["pages.img", "checkpoint.img"])
async def test_a_damaged_image_boots_from_its_disk_and_says_so(host: Host, file: str) -> None:
    guest = await host.create()
    await guest.sh("echo kept > /root/file")
    name = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, name)
    await host.node.demote(guest.spec.sandbox_id)
    await until(lambda: host.node._snapshots.get(name).checksum)
    path = host.settings.folders.data / "snapshots" / name / "memory" / file
    size = path.stat().st_size
    path.write_bytes(bytes(size))

    with pytest.raises(EngineError, match="damaged"):
        await host.node.verify_snapshot(name)
    back = await host.resume(guest, name)

    assert back.running.restored is RestoreMode.DISK
    assert "booted from its disk" in (back.running.note or "")
    assert await back.sh("cat /root/file") == "kept"
    [line] = [e for e in await host.node.logs(guest.spec.sandbox_id) if "booted" in e.message]
    assert line.level == "warn"


async def test_one_whose_variables_nobody_remembers_says_so_when_it_boots(host: Host) -> None:
    guest = await host.create(env_vars={"A": "1"})
    await host.node.close()
    host.node._memos.remove(guest.spec.sandbox_id)  # as a server of before snapshots left it
    await host.begin(guest.spec)
    forgotten = replace(guest, spec=replace(guest.spec, env_vars={}))
    name = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, name)
    await host.node.demote(guest.spec.sandbox_id)

    warm = await host.resume(forgotten, name)
    assert (warm.running.note, await warm.sh("echo $A")) == (None, "1"), "its memory knows them"
    again = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, again, memory=False)
    booted = await host.resume(forgotten, again)

    assert booted.running.note == ENV_UNKNOWN
    assert await booted.sh("echo $A") == ""
    third = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, third, memory=False)
    assert (await host.resume(guest, third)).running.note is None, "the catalog knows them"


async def test_the_wall_clock_is_right_after_every_kind_of_resume(host: Host) -> None:
    guest = await host.create()
    for kind in ("hot", "warm", "disk"):
        name, began = new_snapshot_id(), time.time()
        await host.node.pause(guest.spec.sandbox_id, name, memory=kind != "disk")
        if kind == "warm":
            await host.node.demote(guest.spec.sandbox_id)
        await asyncio.sleep(max(0, began + 1.5 - time.time()))  # the subject is time itself
        guest = await host.resume(guest, name)
        before = time.time()
        assert guest.running.restored == kind
        assert before - 0.1 < float(await guest.sh("date +%s.%N")) < time.time() + 0.1


async def test_a_reboot_is_one_although_the_machine_is_hot(host: Host) -> None:
    guest = await host.create()
    await guest.start_counter()
    name = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, name)

    back = await host.resume(guest, name, reboot=True)

    assert back.running.restored is RestoreMode.DISK
    assert await back.sh("pgrep -f [r]oot/count || echo none") == "none"


async def test_a_restarted_server_finds_the_paused_hot(host: Host) -> None:
    guest = await host.create()
    await guest.start_counter()
    name = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, name)

    adoption = await host.restart(paused=(guest.spec,), snapshots=[name])

    assert adoption.paused == (guest.spec.sandbox_id,)
    back = await host.resume(guest, name)
    assert back.running.restored is RestoreMode.HOT
    assert (await back.count())[1] > 0


async def test_the_budget_of_memory_decides_who_stays_hot(host: Host) -> None:
    guests = await asyncio.gather(*(host.create() for _ in range(3)))
    names = [new_snapshot_id() for _ in guests]
    resident = host.node._residents.get(guests[0].spec.sandbox_id)
    assert resident is not None
    host.node._pauses._budget = (await resident.machine.stats()).memory_bytes * 5 // 2
    for guest, name in zip(guests, names, strict=True):
        await host.node.pause(guest.spec.sandbox_id, name)
    await host.node._pauses.settled()

    modes = [
        (await host.resume(guest, name)).running.restored
        for guest, name in zip(guests, names, strict=True)
    ]

    assert modes[0] is RestoreMode.WARM
    assert modes[-1] is RestoreMode.HOT
