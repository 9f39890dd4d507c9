"""What engines promise that mount volumes: seen as they are, written as allowed, copied in time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.conformance.subjects import Subject
from tests.conformance.test_isolation import needs
from tests.conformance.test_snapshots import shell

from aenv.models.errors import InvalidRequestError, SnapshotDamagedError
from aenv.models.volumes import VolumeMount
from aenv.node.engine import Machine, MachineSpec

DATA = VolumeMount("vdata", "data", "/srv/deep/data")


async def boot(subject: Subject, *mounts: VolumeMount) -> Machine:
    return await subject.engine.boot(replace(subject.spec(), volumes=mounts))


async def content(subject: Subject, volume_id: str = "vdata") -> Path:
    volumes = subject.engine.volumes
    assert volumes is not None
    return (await volumes.folder(volume_id)).content


@pytest.fixture
async def data(subject: Subject) -> Path:
    needs(subject, "volumes")
    assert subject.engine.volumes is not None
    await subject.engine.volumes.make("vdata", 64)
    return await content(subject)


async def test_what_an_engine_declares_is_what_it_has(subject: Subject) -> None:
    assert (subject.engine.volumes is not None) == subject.engine.capabilities.volumes


async def test_host_and_guest_see_what_the_other_writes(subject: Subject, data: Path) -> None:
    (data / "host").write_text("from the host")
    machine = await boot(subject, DATA)
    assert await shell(machine, "cat /srv/deep/data/host") == "from the host"
    await shell(machine, "echo from the guest > /srv/deep/data/guest")
    assert (data / "guest").read_text() == "from the guest\n"
    (data / "guest").write_text("changed")
    assert await shell(machine, "cat /srv/deep/data/guest") == "changed"
    assert await shell(machine, "stat -c %a /srv /srv/deep") == "755\n755\n"
    await machine.destroy()
    assert (data / "host").read_text() == "from the host"
    assert subject.traces(machine.sandbox_id) == []


async def test_a_read_only_one_is_not_written(subject: Subject, data: Path) -> None:
    (data / "f").write_text("x")
    machine = await boot(subject, replace(DATA, read_only=True))
    done = await machine.exec(["/bin/sh", "-c", "echo y > /srv/deep/data/f"])
    assert done.exit_code != 0
    assert (data / "f").read_text() == "x"


async def test_set_user_id_and_devices_have_no_effect(subject: Subject, data: Path) -> None:
    machine = await boot(subject, DATA)
    await shell(machine, "cp /usr/bin/id /srv/deep/data/id; chmod 4755 /srv/deep/data/id")
    assert data.joinpath("id").stat().st_mode & 0o4000
    options = await shell(machine, "grep /srv/deep/data /proc/mounts")
    assert "nosuid" in options


async def test_a_path_through_a_file_is_refused_and_links_stay_inside(
    subject: Subject, data: Path
) -> None:
    (subject.skeleton / "file").write_text("x")
    outside = subject.skeleton.parent / "outside"
    (subject.skeleton / "out").symlink_to(f"../../../../../..{outside}")
    spec = replace(subject.spec(), volumes=(replace(DATA, path="/file/x"),))
    with pytest.raises(InvalidRequestError, match="volumeMounts"):
        await subject.engine.boot(spec)
    assert subject.traces(spec.sandbox_id) == []
    with pytest.raises(InvalidRequestError, match="volumeMounts"):
        await boot(subject, replace(DATA, path="/out/x"))
    assert list(outside.parent.glob(outside.name)) == []


async def test_a_restored_machine_has_the_copy_of_its_moment(
    subject: Subject, data: Path, folder: Path
) -> None:
    needs(subject, "memory_snapshot")
    machine = await boot(subject, DATA)
    await shell(machine, "echo then > /srv/deep/data/f")
    await subject.restart()
    machine = await subject.engine.adopt(machine.sandbox_id)
    await machine.sync()
    await machine.freeze()
    memory = await machine.checkpoint(folder / "image")
    disk = await machine.save_disk("s-kept", volumes=True)
    await machine.thaw()
    await shell(machine, "echo now > /srv/deep/data/f")

    spec = replace(subject.spec(), disk=disk, volumes=(replace(DATA, own=True),))
    copy = await subject.engine.restore(spec, memory)
    assert await shell(copy, "cat /srv/deep/data/f") == "then\n"
    await shell(copy, "echo mine > /srv/deep/data/f")
    assert await shell(machine, "cat /srv/deep/data/f") == "now\n"
    assert (await content(subject, f"{copy.sandbox_id}+vdata") / "f").read_text() == "mine\n"
    await copy.destroy()
    assert subject.engine.volumes is not None
    await subject.engine.volumes.drop_of(spec.sandbox_id)
    assert subject.traces(spec.sandbox_id) == []

    await subject.engine.drop_disk("s-kept")
    again = await _damaged(subject, replace(subject.spec(), volumes=spec.volumes))
    assert subject.traces(again.sandbox_id) == []


async def _damaged(subject: Subject, spec: MachineSpec) -> MachineSpec:
    """A boot whose copy is not kept any more leaves nothing."""
    with pytest.raises(SnapshotDamagedError):
        await subject.engine.boot(spec)
    return spec
