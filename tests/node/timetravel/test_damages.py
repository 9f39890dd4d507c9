"""What becomes of a paused sandbox and of a snapshot whose files are damaged: one outcome each."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.node.timetravel.travel import Guest, Host, new_snapshot_id

from aenv.models.errors import SnapshotDamagedError
from aenv.models.snapshots import RestoreMode

pytestmark = [pytest.mark.gvisor, pytest.mark.root]


async def paused(host: Host) -> tuple[Guest, str]:
    """A sandbox that is on disk alone, and its image."""
    guest = await host.create(env_vars={"A": "1"}, engine="gvisor")
    await guest.sh("echo kept > /root/file")
    name = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, name)
    await host.node.demote(guest.spec.sandbox_id)
    return guest, name


def place(host: Host, name: str) -> Path:
    return host.settings.folders.data / "snapshots" / name


async def boots_from_its_disk(host: Host, guest: Guest, name: str, why: str) -> None:
    with pytest.raises(SnapshotDamagedError):
        await host.node.verify_snapshot(name)
    fork = await host.create(snapshot=name, engine="gvisor")
    back = await host.resume(guest, name)
    for one in (fork, back):
        assert one.running.restored is RestoreMode.DISK
        assert why in (one.running.note or "")
        assert await one.sh("cat /root/file") == "kept"
    assert await back.sh("echo $A") == "1"


@pytest.mark.parametrize("file", ["manifest.json", "private.json"])
async def test_without_what_is_known_of_it_the_disk_is_booted(host: Host, file: str) -> None:
    guest, name = await paused(host)
    path = place(host, name) / file
    os.truncate(path, path.stat().st_size // 2)
    await host.restart(paused=(guest.spec,), snapshots=[name])

    await boots_from_its_disk(host, guest, name, file)

    await host.node.delete_snapshot(name)
    assert await host.disk_images() == []
    assert not place(host, name).exists()


@pytest.mark.parametrize("file", ["pages.img", "checkpoint.img", "pages_meta.img", "image.json"])
async def test_a_truncated_image_boots_from_its_disk(host: Host, file: str) -> None:
    guest, name = await paused(host)
    path = place(host, name) / "memory" / file
    os.truncate(path, path.stat().st_size // 2)

    fork = await host.create(snapshot=name)
    back = await host.resume(guest, name)

    for one in (fork, back):
        assert one.running.restored is RestoreMode.DISK
        assert file in (one.running.note or "")
        assert await one.sh("cat /root/file") == "kept"


async def test_without_its_disk_nothing_starts_and_it_stays_what_it_was(host: Host) -> None:
    guest, name = await paused(host)
    engine = await host.node._engines.get("gvisor")
    await engine.drop_disk(name)

    with pytest.raises(SnapshotDamagedError, match="gone"):
        await host.node.verify_snapshot(name)
    for _ in range(2):
        with pytest.raises(SnapshotDamagedError, match="Put it back from a copy"):
            await host.resume(guest, name)
        with pytest.raises(SnapshotDamagedError):
            await host.create(snapshot=name)

    assert [one.id for one in await host.node.snapshots()] == [name]
    await host.node.delete_snapshot(name)


async def test_a_damaged_image_of_a_template_is_made_anew(host: Host) -> None:
    await host.warm()
    (baked,) = host.node._makers.bakes.store.all()
    (baked.folder / "manifest.json").write_text("{")
    await host.restart()

    await host.warm()

    guest = await host.claim()
    assert await guest.sh("echo fine") == "fine"
    (again,) = host.node._makers.bakes.store.all()
    assert await host.disk_images() == [again.manifest.id]
