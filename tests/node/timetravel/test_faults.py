"""runsc killed at every step, full disks, other releases: what fails, fails in time and cleanly."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.fakes.waiting import until
from tests.node.timetravel.travel import Host, new_snapshot_id

from aenv.models.errors import AenvError, ConflictError, DiskFullError, NotFoundError
from aenv.models.snapshots import RestoreMode
from aenv.node import faults
from aenv.node.host import open_host
from aenv.node.runsc import pin

pytestmark = [pytest.mark.gvisor, pytest.mark.root]


def killer(host: Host, sandbox_id: str, *, gofer: bool = False) -> Callable[[str], Awaitable[None]]:
    """Kills the sandbox process of whatever machine has that id at the moment, or its file
    server.
    """

    async def kill(point: str) -> None:
        engine = await host.node._engines.get("gvisor")
        state = engine._parts.bundle(sandbox_id).read_state()  # type: ignore[attr-defined]
        os.kill(state["goferPid"] if gofer else state["sandbox"]["pid"], signal.SIGKILL)

    return kill


@pytest.mark.parametrize("point", ["pause.frozen", "snapshot.frozen", "snapshot.copied"])
async def test_a_sandbox_that_dies_meanwhile_is_told_as_ended_and_leaves_nothing(
    host: Host, point: str
) -> None:
    guest = await host.create()
    operation = getattr(host.node, point.partition(".")[0])
    ends = aiter(host.node.exits())

    with faults.armed(point, killer(host, guest.spec.sandbox_id)), pytest.raises(AenvError):
        await operation(guest.spec.sandbox_id, new_snapshot_id())

    end = await asyncio.wait_for(anext(ends), 10)
    assert end.sandbox_id == guest.spec.sandbox_id
    assert await host.node.snapshots() == []
    assert await host.disk_images() == []
    await until(lambda: host.node._residents.get(guest.spec.sandbox_id) is None, timeout=10)


@pytest.mark.parametrize("operation", ["pause", "snapshot"])
async def test_no_image_is_kept_of_a_guest_that_lost_its_files(host: Host, operation: str) -> None:
    guest = await host.create()
    await guest.start_counter()
    kill = killer(host, guest.spec.sandbox_id, gofer=True)

    with faults.armed(f"{operation}.frozen", kill), pytest.raises(AenvError):
        await getattr(host.node, operation)(guest.spec.sandbox_id, new_snapshot_id())

    assert await host.node.snapshots() == []
    assert await host.disk_images() == []
    await until(lambda: host.node._residents.get(guest.spec.sandbox_id) is None, timeout=10)


@pytest.mark.parametrize("point", ["pause.copied", "pause.published", "pause.marked"])
async def test_a_pause_whose_image_is_whole_survives_its_machine(host: Host, point: str) -> None:
    guest = await host.create()
    await guest.start_counter()
    pid, _ = await guest.count()
    name = new_snapshot_id()
    with faults.armed(point, killer(host, guest.spec.sandbox_id)):
        await host.node.pause(guest.spec.sandbox_id, name)

    assert host.node._residents._exits.empty()
    await until(lambda: host.node._residents.get(guest.spec.sandbox_id) is None, timeout=10)
    back = await host.resume(guest, name)
    assert (await back.count())[0] == pid


async def test_a_hot_sandbox_whose_machine_dies_is_restored(host: Host) -> None:
    guest = await host.create()
    await guest.start_counter()
    name = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, name)
    await killer(host, guest.spec.sandbox_id)("")
    await until(lambda: host.node._residents.get(guest.spec.sandbox_id) is None, timeout=10)

    back = await host.resume(guest, name)

    assert back.running.restored is RestoreMode.WARM
    assert (await back.count())[1] > 0
    assert host.node._residents._exits.empty()


@pytest.mark.parametrize("point", ["resume.thawed", "restore.restored", "restore.told"])
async def test_a_resume_whose_machine_dies_starts_another(host: Host, point: str) -> None:
    guest = await host.create()
    await guest.sh("echo kept > /root/file")
    name = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, name)
    if point.startswith("restore"):
        await host.node.demote(guest.spec.sandbox_id)
    kill, strikes = killer(host, guest.spec.sandbox_id), iter([True])

    async def once(where: str) -> None:
        if next(strikes, False):
            await kill(where)

    with faults.armed(point, once):
        outcome = await host.resume(guest, name)

    if point == "restore.told":  # that was an end like any other
        await until(lambda: host.node._residents.get(guest.spec.sandbox_id) is None, timeout=10)
        outcome = await host.resume(guest, name)
    assert outcome.running.restored is RestoreMode.WARM
    assert await outcome.sh("cat /root/file") == "kept"


async def test_a_full_disk_fails_a_snapshot_and_the_source_runs_on(host: Host) -> None:
    guest = await host.create()
    await guest.start_counter()
    with full_disk(host), pytest.raises(DiskFullError):
        await host.node.snapshot(guest.spec.sandbox_id, new_snapshot_id())

    _, count = await guest.count()
    await guest.sh(f"until [ $(cut -d' ' -f2 /root/count) -gt {count} ]; do sleep 0.01; done")
    assert await host.disk_images() == []


async def test_a_full_disk_leaves_a_sandbox_frozen_and_it_thaws(host: Host) -> None:
    guest = await host.create()
    await guest.start_counter()
    name = new_snapshot_id()
    with full_disk(host), pytest.raises(DiskFullError):
        await host.node.pause(guest.spec.sandbox_id, name)

    assert not await host.node.demote(guest.spec.sandbox_id)
    resident = host.node._residents.get(guest.spec.sandbox_id)
    assert resident is not None
    assert resident.machine.frozen
    adoption = await host.restart(paused=(guest.spec,))
    assert adoption.paused == (guest.spec.sandbox_id,)
    assert not await host.node.demote(guest.spec.sandbox_id)
    back = await host.resume(guest, None)
    assert back.running.restored is RestoreMode.HOT
    await back.count()
    await host.node.pause(guest.spec.sandbox_id, name)


@pytest.mark.parametrize("operation", ["pause", "snapshot"])
async def test_a_disk_that_fills_up_during_a_checkpoint_is_a_full_disk(
    host: Host, operation: str
) -> None:
    guest = await host.create()
    await guest.start_counter()
    whom, folder = guest.spec.sandbox_id, host.settings.folders.data / "snapshots"

    async def fill(point: str) -> None:
        left = os.statvfs(folder)
        with (folder / ".new-filler").open("wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, left.f_bavail * left.f_frsize - (2 << 20))

    with full_disk(host, size="1g"), faults.armed(f"{operation}.frozen", fill):
        with pytest.raises(DiskFullError):
            await getattr(host.node, operation)(whom, new_snapshot_id())
        assert [one.name for one in folder.iterdir()] == [".new-filler"]

    assert await host.disk_images() == []
    if operation == "pause":
        assert not await host.node.demote(whom)
        guest = await host.resume(guest, None)
    _, count = await guest.count()
    await guest.sh(f"until [ $(cut -d' ' -f2 /root/count) -gt {count} ]; do sleep 0.01; done")
    await host.node.snapshot(whom, new_snapshot_id())


async def test_an_image_of_a_former_release_is_restored_by_it_or_else_from_disk(
    host: Host,
) -> None:
    guest = await host.create()
    await guest.start_counter()
    name = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, name)
    await host.node.demote(guest.spec.sandbox_id)
    former = await as_if_made_by_a_former_release(host, name)

    back = await host.resume(guest, name)
    assert back.running.restored is RestoreMode.WARM
    pid, _ = await back.count()
    again = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, again)
    [facts] = [one for one in await host.node.snapshots() if one.id == again]
    assert facts.fingerprint is not None
    assert facts.fingerprint.engine_version == FORMER
    hot = await host.resume(guest, again)
    assert (await hot.count())[0] == pid
    await host.node.pause(guest.spec.sandbox_id, new_snapshot_id())
    await host.node.demote(guest.spec.sandbox_id)

    former.unlink()
    disk = await host.resume(guest, again)

    assert disk.running.restored is RestoreMode.DISK
    assert FORMER in (disk.running.note or "")
    assert await disk.sh("test -s /root/count && echo kept") == "kept"


async def test_the_image_below_a_snapshot_stays_while_it_is_needed(host: Host) -> None:
    guest = await host.create()
    name = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, name)
    await host.node.demote(guest.spec.sandbox_id)
    with pytest.raises(ConflictError, match="1 sandboxes or snapshots"):
        await host.node.delete_template("host")

    await host.node.delete_snapshot(name)

    await host.node.delete_template("host")
    with pytest.raises(NotFoundError):
        await host.resume(guest, name)


async def test_room_for_a_create_is_made_of_what_is_paused(host: Host) -> None:
    guests = [await host.create() for _ in range(2)]
    names = [new_snapshot_id() for _ in guests]
    for guest, name in zip(guests, names, strict=True):
        await host.node.pause(guest.spec.sandbox_id, name)
    admission = host.node._memory.admission
    measure = admission._measure

    def short_of_one():  # type: ignore[no-untyped-def]
        found = measure()
        both = all(host.node._residents.get(guest.spec.sandbox_id) for guest in guests)
        return type(found)(0, found.disk) if both else found

    admission._measure = short_of_one
    await host.create()

    hot = [g.spec.sandbox_id for g in guests if host.node._residents.get(g.spec.sandbox_id)]
    assert hot == [guests[1].spec.sandbox_id]


FORMER = "20250101"


async def as_if_made_by_a_former_release(host: Host, name: str) -> Path:
    """Give our runsc another version's name, and the image too: as if an update had happened."""
    engine = await host.node._engines.get("gvisor")
    folders = host.settings.folders
    former = folders.cache / "runsc" / FORMER / "runsc"
    former.parent.mkdir(parents=True)
    ours = engine._parts.runsc.binary  # type: ignore[attr-defined]
    former.write_bytes(ours.read_bytes().replace(pin.VERSION.encode(), FORMER.encode()))
    former.chmod(0o755)
    stored = host.node._snapshots.get(name)
    image = stored.folder / "memory" / "checkpoint.img"
    image.write_bytes(image.read_bytes().replace(pin.VERSION.encode(), FORMER.encode()))
    object.__setattr__(stored.manifest, "engine_version", FORMER)
    return former


@contextmanager
def full_disk(host: Host, *, size: str = "64k") -> Iterator[None]:
    """Snapshots meet a file system with next to no room, or of the given size."""
    folder = host.settings.folders.data / "snapshots"
    opened = open_host(host.settings)
    opened.mounts.device(Path("tmpfs"), folder, kind="tmpfs", options=f"size={size}")
    try:
        yield
    finally:
        opened.mounts.unmount(folder)
        opened.close()


@pytest.mark.parametrize("frozen", [False, True])
async def test_a_server_that_died_while_it_froze_a_machine_is_followed_by_one_that_finds_out(
    host: Host, frozen: bool
) -> None:
    guest = await host.create()
    await guest.start_counter()
    resident = host.node._residents.get(guest.spec.sandbox_id)
    assert resident is not None
    if frozen:
        await resident.machine.freeze()
    engine = await host.node._engines.get("gvisor")
    bundle = engine._parts.bundle(guest.spec.sandbox_id)  # type: ignore[attr-defined]
    bundle.mark_frozen(None)

    adoption = await host.restart(guest.spec)

    assert adoption.ended == ()
    assert bundle.read_frozen() is False
    _, count = await guest.count()
    await guest.sh(f"until [ $(cut -d' ' -f2 /root/count) -gt {count} ]; do sleep 0.01; done")
