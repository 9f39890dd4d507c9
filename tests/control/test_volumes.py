"""Volumes and who holds them, whatever happens at the same time."""

from __future__ import annotations

import asyncio

import pytest
from tests.control.houses import House
from tests.fakes.waiting import until, until_equal

from aenv.control.volumes import MountRequest
from aenv.models.errors import (
    AenvError,
    CapacityError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
    UnauthorizedError,
)
from aenv.models.volumes import VolumeMode, VolumeMount
from aenv.store import volumes as rows
from aenv.store.records import SandboxRecord
from aenv.store.volumes import VolumeRecord


async def make(house: House, name: str = "data") -> VolumeRecord:
    return await house.system.volumes.create(house.caller.team, name)


async def mounted(house: House, name: str = "data", path: str = "/data") -> SandboxRecord:
    return await house.create(volume_mounts=(MountRequest(name, path),))


async def holders(house: House, volume: VolumeRecord) -> list[str]:
    held = await house.system.catalog.read(lambda db: rows.holders(db, [volume.id]))
    return [one.sandbox_id for one in held]


async def test_a_sandbox_is_started_with_its_volume(house: House) -> None:
    volume = await make(house)
    record = await mounted(house, path="/mnt//data/")
    wanted = (VolumeMount(volume.id, "data", "/mnt/data"),)
    assert house.node.running[record.id].volumes == wanted
    assert (await house.row(record.id)).volumes == wanted
    assert await holders(house, volume) == [record.id]
    assert house.node.count("claim") == 0


async def test_of_many_at_once_one_gets_it_and_the_others_hear_who(house: House) -> None:
    volume = await make(house)
    outcomes = await asyncio.gather(*(mounted(house) for _ in range(8)), return_exceptions=True)
    (winner,) = [one for one in outcomes if isinstance(one, SandboxRecord)]
    losers = [one for one in outcomes if isinstance(one, ConflictError)]
    assert len(losers) == 7
    assert all(winner.id in one.message for one in losers)
    assert await holders(house, volume) == [winner.id]
    assert len(await house.living()) == 1


async def test_the_end_of_its_holder_frees_it(house: House) -> None:
    await make(house)
    first = await mounted(house)
    await house.system.sandboxes.kill(house.caller, first.id)
    second = await mounted(house)
    assert second.id != first.id


async def test_a_create_that_fails_frees_it(house: House) -> None:
    volume = await make(house)
    house.node.knobs.create_errors.append(CapacityError("full"))
    with pytest.raises(CapacityError):
        await mounted(house)
    assert await holders(house, volume) == []
    await mounted(house)


async def test_a_paused_one_keeps_it_also_over_a_restart(house: House) -> None:
    volume = await make(house)
    record = await mounted(house)
    await house.pause(record.id)
    await house.abandon()
    await house.restart()
    with pytest.raises(ConflictError, match=record.id):
        await mounted(house)
    await house.connect(record.id)
    assert house.node.running[record.id].volumes[0].volume_id == volume.id


async def test_a_server_killed_between_claim_and_boot_leaves_it_free(house: House) -> None:
    volume = await make(house)
    house.node.knobs.create_gate = asyncio.Event()
    creating = asyncio.create_task(mounted(house))
    await until(lambda: house.node.count("create") == 1)
    assert await holders(house, volume) != []
    creating.cancel()
    await house.abandon()
    house.node.knobs.create_gate = None
    await house.restart()
    await until_equal(lambda: holders(house, volume), [])
    await mounted(house)


async def test_read_only_ones_are_shared(house: House) -> None:
    volume = await make(house)
    await house.system.volumes.seal(house.caller.team, volume.id)
    both = [await mounted(house) for _ in range(2)]
    assert await holders(house, volume) == sorted(one.id for one in both)
    assert all(house.node.running[one.id].volumes[0].read_only for one in both)


async def test_a_fork_has_a_copy_and_shares_what_nobody_writes(house: House) -> None:
    volume, shared = await make(house), await make(house, "shared")
    await house.system.volumes.seal(house.caller.team, shared.id)
    asked = (MountRequest("data", "/data"), MountRequest("shared", "/shared"))
    source = await house.create(volume_mounts=asked)
    (child,) = await house.fork(source.id)
    assert isinstance(child, SandboxRecord)
    assert house.node.running[child.id].volumes == (
        VolumeMount(volume.id, "data", "/data", own=True),
        VolumeMount(shared.id, "shared", "/shared", read_only=True),
    )
    assert await holders(house, volume) == [source.id]
    assert await holders(house, shared) == sorted([source.id, child.id])

    kept = await house.snapshot(child.id, "kept")
    again = await house.create(template=kept.public_id)
    assert again.volumes == child.volumes


async def test_one_in_use_is_not_deleted(house: House) -> None:
    volume = await make(house)
    record = await mounted(house)
    with pytest.raises(ConflictError, match=record.id):
        await house.system.volumes.delete(house.caller.team, volume.id)
    with pytest.raises(ConflictError, match=record.id):
        await house.system.volumes.seal(house.caller.team, volume.id)
    await house.system.sandboxes.kill(house.caller, record.id)
    await house.system.volumes.delete(house.caller.team, volume.id)
    assert house.node.host.volumes == {}
    with pytest.raises(NotFoundError):
        await house.system.volumes.get(house.caller.team, volume.id)


async def test_names_are_unique_and_what_fails_leaves_nothing(house: House) -> None:
    await make(house)
    outcomes = await asyncio.gather(*(make(house, "b") for _ in range(4)), return_exceptions=True)
    assert sum(isinstance(one, VolumeRecord) for one in outcomes) == 1
    with pytest.raises(ConflictError):
        await make(house)
    house.node.knobs.volume_errors.append(CapacityError("full"))
    with pytest.raises(CapacityError):
        await make(house, "c")
    assert len(house.node.host.volumes) == 2


async def test_folders_of_no_row_go_at_the_start(house: House) -> None:
    volume = await make(house)
    await house.node.make_volume("vorphan", 1)
    await house.abandon()
    await house.restart()
    assert list(house.node.host.volumes) == [volume.id]


async def test_a_server_starts_although_they_cannot_be_deleted(house: House) -> None:
    await make(house)
    await house.abandon()
    house.node.knobs.volume_errors.append(CapacityError("not now"))
    await house.restart()
    await mounted(house)


async def test_sealing_anew_leaves_it_mountable_meanwhile(house: House) -> None:
    volume = await make(house)
    team = house.caller.team
    sealed = await house.system.volumes.seal(team, volume.id)
    record = await mounted(house, f"data@{sealed.digest}")
    assert await house.system.volumes.seal(team, volume.id) == sealed
    assert await holders(house, volume) == [record.id]


async def test_the_content_is_for_who_has_the_token(house: House) -> None:
    volume = await make(house)
    for name, token in ((volume.id, "wrong"), ("vnone", volume.token), (volume.id, "é")):
        with pytest.raises(UnauthorizedError):
            await house.system.volumes.content(name, token)
    await house.system.volumes.content(volume.id, volume.token, write=True)
    sealed = await house.system.volumes.seal(house.caller.team, volume.id)
    assert sealed.mode is VolumeMode.READ_ONLY
    with pytest.raises(ConflictError):
        await house.system.volumes.content(volume.id, volume.token, write=True)


async def test_a_digest_says_which_content_is_meant(house: House) -> None:
    volume = await make(house)
    with pytest.raises(ConflictError, match="not sealed"):
        await mounted(house, "data@sha256:00")
    sealed = await house.system.volumes.seal(house.caller.team, volume.id)
    with pytest.raises(ConflictError, match="sha256:00"):
        await mounted(house, "data@sha256:00")
    await mounted(house, f"data@{sealed.digest}")


@pytest.mark.parametrize(
    "paths",
    [("data",), ("/",), ("/a/../b",), ("/proc",), ("/sys/x",), ("/dev/shm",), ("/.aenv/x",)],
)
async def test_paths_that_are_refused(house: House, paths: tuple[str, ...]) -> None:
    await make(house)
    with pytest.raises(InvalidRequestError, match="volumeMounts"):
        await mounted(house, path=paths[0])


@pytest.mark.parametrize("paths", [("/a", "/a"), ("/a", "/a/b")])
async def test_no_volume_hides_another(house: House, paths: tuple[str, str]) -> None:
    await make(house)
    await make(house, "b")
    asked = tuple(map(MountRequest, ("data", "b"), paths))
    with pytest.raises(InvalidRequestError, match="volumeMounts"):
        await house.create(volume_mounts=asked)
    with pytest.raises(AenvError):
        await house.create(volume_mounts=(MountRequest("b", "/x"), MountRequest("b", "/y")))
