"""What engines promise that keep a machine's disk and memory: copies of one moment, each apart."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conformance.subjects import HOST_SECRET, TOKEN, Subject, healthy, tell, told
from tests.conformance.test_isolation import BOOT_ID, needs

from aenv.models.errors import (
    AenvError,
    CapabilityError,
    ConflictError,
    ImageUnusableError,
    NotFoundError,
    SnapshotDamagedError,
)
from aenv.models.sandboxes import AGENT_PORT, Resources
from aenv.node.agents import AgentClient
from aenv.node.engine import DiskImage, Machine, MemoryImage


async def test_an_engine_that_keeps_no_disks_says_so(subject: Subject, machine: Machine) -> None:
    if subject.engine.capabilities.disk_snapshot:
        pytest.skip(f"{subject.name} keeps disks")
    with pytest.raises(CapabilityError):
        await machine.sync()
    with pytest.raises(CapabilityError):
        await machine.save_disk("s")
    with pytest.raises(CapabilityError):
        await subject.engine.drop_disk("s")
    assert await subject.engine.disk_images() == []


async def test_a_machine_starts_from_a_kept_disk_and_writes_apart_from_it(
    subject: Subject, machine: Machine
) -> None:
    needs(subject, "disk_snapshot")
    await shell(machine, "echo first > /root/file; ln /root/file /root/hard; rm -r /home")
    image = await keep_disk(machine)
    await shell(machine, "echo second > /root/file")

    copy = await subject.engine.boot(replace(subject.spec(), disk=image))

    assert await shell(copy, "cat /root/file /root/hard; ls -d /home || true") == "first\nfirst\n"
    await shell(copy, "echo copy > /root/file")
    assert await shell(machine, "cat /root/file") == "second\n"
    again = await subject.engine.boot(replace(subject.spec(), disk=image))
    assert await shell(again, "cat /root/file") == "first\n"


async def test_a_kept_disk_outlives_its_machine_and_is_measured(
    subject: Subject, machine: Machine
) -> None:
    needs(subject, "disk_snapshot")
    await shell(machine, "head -c 20000000 /dev/urandom > /root/big")
    shared = await keep_disk(machine)
    assert shared.bytes >= 20_000_000
    assert shared.own_bytes < 10_000_000

    await machine.destroy()
    await until_own(subject, shared.name, 20_000_000)

    copy = await subject.engine.boot(replace(subject.spec(), disk=shared))
    assert await shell(copy, "stat -c %s /root/big") == "20000000\n"


async def test_the_quota_of_a_copy_is_its_own(subject: Subject, machine: Machine) -> None:
    needs(subject, "disk_snapshot")
    await shell(machine, "head -c 20000000 /dev/zero > /root/big")
    image = await keep_disk(machine)
    small = Resources(cpu=2, memory_mb=512, disk_mb=64)
    copy = await subject.engine.boot(replace(subject.spec(resources=small), disk=image))

    refused = await copy.exec(["/bin/sh", "-c", "head -c 80000000 /dev/urandom > /root/more"])

    assert refused.exit_code != 0
    assert (await copy.stats()).disk_limit_bytes == 64 << 20
    await shell(machine, "head -c 80000000 /dev/urandom > /root/more")


async def test_a_dropped_disk_is_gone_and_its_copies_live_on(
    subject: Subject, machine: Machine
) -> None:
    needs(subject, "disk_snapshot")
    await shell(machine, "echo kept > /root/file")
    image = await keep_disk(machine)
    with pytest.raises(ConflictError):
        await machine.save_disk(image.name)
    copy = await subject.engine.boot(replace(subject.spec(), disk=image))

    await subject.engine.drop_disk(image.name)
    await subject.engine.drop_disk(image.name)

    assert await subject.engine.disk_images() == []
    assert await shell(copy, "cat /root/file") == "kept\n"
    spec = replace(subject.spec(), disk=image)
    with pytest.raises(SnapshotDamagedError):
        await subject.engine.boot(spec)
    assert subject.traces(spec.sandbox_id) == []


async def test_a_kept_disk_is_verified(subject: Subject, machine: Machine) -> None:
    needs(subject, "disk_snapshot")
    image = await keep_disk(machine)
    await subject.engine.verify_disk(image.name)
    with pytest.raises(NotFoundError):
        await subject.engine.verify_disk("s" * 20)


async def test_disk_and_memory_of_one_moment_go_on_together(
    subject: Subject, machine: Machine, folder: Path
) -> None:
    needs(subject, "memory_snapshot")
    assert await healthy(machine)
    await tell(machine, {})  # a program that the engine itself starts ends with its machine's life
    await agent_of(machine).spawn(
        "i=0; exec 3>/root/log; while :; do i=$((i+1)); echo $i >&3; done", user="root"
    )
    await shell(machine, "until [ $(wc -l < /root/log) -gt 9 ]; do sleep 0.01; done")
    memory, disk = await capture(machine, folder / "image")

    restored = await subject.engine.restore(replace(subject.spec(), disk=disk), memory)

    first = int(await shell(restored, "wc -l < /root/log"))
    await shell(restored, f"until [ $(wc -l < /root/log) -gt {first} ]; do sleep 0.01; done")
    lines = (await shell(restored, "cat /root/log")).splitlines()[:-1]
    assert lines == [str(n + 1) for n in range(len(lines))]


async def test_four_forks_of_a_running_machine(
    subject: Subject, machine: Machine, folder: Path
) -> None:
    needs(subject, "live_fork")
    assert await healthy(machine)
    await tell(machine, {"A": "1"})
    await shell(machine, "echo all > /root/file")
    memory, disk = await capture(machine, folder / "image")
    specs = [replace(subject.spec(hostname=f"fork{n}"), disk=disk) for n in range(4)]
    forks = await asyncio.gather(*(subject.engine.restore(spec, memory) for spec in specs))

    for number, fork in enumerate(forks):
        assert await healthy(fork)
        assert await told(fork) == {"A": "1"}
        await shell(fork, f"echo {number} >> /root/file")
    contents = [await shell(fork, "cat /root/file") for fork in forks]
    assert contents == [f"all\n{number}\n" for number in range(4)]
    assert await shell(machine, "cat /root/file") == "all\n"
    assert len({(await fork.exec(BOOT_ID)).stdout for fork in forks}) == 4


async def test_the_same_life_keeps_its_boot_id(
    subject: Subject, machine: Machine, folder: Path
) -> None:
    needs(subject, "memory_snapshot")
    before = (await machine.exec(BOOT_ID)).stdout
    memory, disk = await capture(machine, folder / "image")
    await machine.destroy()
    spec = replace(subject.spec(), sandbox_id=machine.sandbox_id, disk=disk, same_life=True)

    resumed = await subject.engine.restore(spec, memory)

    assert (await resumed.exec(BOOT_ID)).stdout == before


async def test_an_image_is_restored_with_the_agent_it_was_made_with(
    subject: Subject, machine: Machine, folder: Path
) -> None:
    needs(subject, "memory_snapshot")
    assert await healthy(machine)
    await tell(machine, {"A": "old"})
    memory, disk = await capture(machine, folder / "image")
    await machine.destroy()
    await subject.restart()  # a host without machines forgets the agents it carried
    newer = folder / "newer-agent"
    newer.write_bytes(subject.agent.read_bytes() + b"newer")
    newer.chmod(0o755)

    restored = await subject.engine.restore(replace(subject.spec(agent=newer), disk=disk), memory)

    assert await healthy(restored)
    assert await told(restored) == {"A": "old"}
    size = await shell(restored, "stat -c %s /.aenv/agent")
    assert int(size) == subject.agent.stat().st_size


@pytest.mark.parametrize("file", ["checkpoint.img", "pages.img", "pages_meta.img", "image.json"])
async def test_a_truncated_image_is_refused_and_its_disk_still_boots(
    subject: Subject, machine: Machine, folder: Path, file: str
) -> None:
    needs(subject, "memory_snapshot")
    await shell(machine, "echo kept > /root/file")
    memory, disk = await capture(machine, folder / "image")
    damaged = memory.path / file
    os.truncate(damaged, damaged.stat().st_size // 2)
    spec = replace(subject.spec(), disk=disk)

    with pytest.raises(AenvError):
        await subject.engine.restore(spec, memory)

    assert subject.traces(spec.sandbox_id) == []
    booted = await subject.engine.boot(spec)
    assert await shell(booted, "cat /root/file") == "kept\n"


async def test_an_image_of_another_cpu_is_refused(
    subject: Subject, machine: Machine, folder: Path
) -> None:
    needs(subject, "memory_snapshot")
    memory, disk = await capture(machine, folder / "image")
    spec = replace(subject.spec(), disk=disk)
    with pytest.raises(ImageUnusableError, match="CPU"):
        await subject.engine.restore(spec, replace(memory, cpu_features="of another"))


async def shell(machine: Machine, command: str) -> str:
    done = await machine.exec(["/bin/sh", "-c", command])
    assert done.exit_code == 0, done.stderr.decode()
    return done.stdout.decode()


def agent_of(machine: Machine) -> AgentClient:
    address = machine.address(AGENT_PORT)
    return AgentClient(address, host_secret=HOST_SECRET, access_token=TOKEN)


async def keep_disk(machine: Machine) -> DiskImage:
    await machine.freeze()
    try:
        return await machine.save_disk("s-" + machine.sandbox_id)
    finally:
        await machine.thaw()


async def capture(machine: Machine, destination: Path) -> tuple[MemoryImage, DiskImage]:
    await machine.sync()
    await machine.freeze()
    try:
        memory = await machine.checkpoint(destination)
        return memory, await machine.save_disk("s-" + machine.sandbox_id)
    finally:
        await machine.thaw()


async def until_own(subject: Subject, name: str, least: int) -> None:
    """Wait for the file system to count what the end of a machine left to its copy alone."""
    async with asyncio.timeout(20):
        while True:
            [image] = [i for i in await subject.engine.disk_images() if i.name == name]
            if image.own_bytes >= least:
                return
            await asyncio.sleep(0.1)
