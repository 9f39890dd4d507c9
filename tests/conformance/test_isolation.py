"""What only some engines promise: limits, a life of one's own, freezing, memory images."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conformance.subjects import Subject, healthy, tell, told

from aenv.models.errors import (
    AenvError,
    CapabilityError,
    ConflictError,
    Culprit,
    ImageUnusableError,
)
from aenv.models.sandboxes import NetworkPolicy, Resources
from aenv.node.engine import Capabilities, Isolation, Machine, MemoryImage
from aenv.node.engines.gvisor.machine import GVisorMachine
from aenv.node.engines.gvisor.making import Making

BOOT_ID = ["/bin/cat", "/proc/sys/kernel/random/boot_id"]


def needs(subject: Subject, capability: str) -> Capabilities:
    capabilities = subject.engine.capabilities
    if not getattr(capabilities, capability):
        pytest.skip(f"{subject.name} declares no {capability}")
    return capabilities


def isolated(subject: Subject) -> None:
    if subject.engine.capabilities.isolation is Isolation.NONE:
        pytest.skip(f"{subject.name} declares no isolation")


async def test_what_is_declared_absent_is_refused(subject: Subject, machine: Machine) -> None:
    capabilities = subject.engine.capabilities
    if not capabilities.freeze:
        with pytest.raises(CapabilityError):
            await machine.freeze()
    if not capabilities.egress_policy:
        with pytest.raises(CapabilityError):
            await machine.set_network(NetworkPolicy(allow_internet=False))
    if not capabilities.memory_snapshot:
        with pytest.raises(CapabilityError):
            await subject.engine.restore(
                subject.spec(), MemoryImage(Path("/none"), subject.name, "0")
            )


async def test_the_guest_has_its_own_kernel_name_and_files(subject: Subject) -> None:
    isolated(subject)
    one, two = await asyncio.gather(
        *(subject.engine.boot(subject.spec(hostname=name)) for name in ("one", "two"))
    )

    assert (await one.exec(["/bin/hostname"])).stdout == b"one\n"
    assert (await one.exec(BOOT_ID)).stdout != (await two.exec(BOOT_ID)).stdout
    assert b"Starting gVisor" in (await one.exec(["/bin/dmesg"])).stdout
    await one.exec(["/bin/sh", "-c", "echo secret > /root/file"])
    assert (await two.exec(["/bin/cat", "/root/file"])).exit_code == 1
    assert (await one.exec(["/bin/sh", "-c", "echo x > /usr/x"])).exit_code != 0
    assert (await one.exec(["/bin/ls", "/proc"])).stdout.count(b"\n") < 100


async def test_the_agent_folder_is_read_only_and_the_ca_is_there_on_request(
    subject: Subject,
) -> None:
    isolated(subject)
    plain, trusting = await asyncio.gather(
        subject.engine.boot(subject.spec()), subject.engine.boot(subject.spec(host_ca=True))
    )

    assert (await plain.exec(["/bin/ls", "/.aenv"])).stdout == b"agent\npython\n"
    assert (await plain.exec(["/bin/rm", "/.aenv/agent"])).exit_code != 0
    certificates = await trusting.exec(["/bin/cat", "/.aenv/ca.crt"])
    assert b"BEGIN CERTIFICATE" in certificates.stdout


async def test_tmp_is_on_the_disk_and_writable_by_all(subject: Subject) -> None:
    isolated(subject)
    machine = await subject.engine.boot(subject.spec())

    assert (await machine.exec(["/usr/bin/stat", "-c", "%a %T", "/tmp"])).stdout[:4] == b"1777"
    assert b" /tmp " not in (await machine.exec(["/bin/cat", "/proc/mounts"])).stdout


async def test_everybody_shares_memory_and_fills_half_of_it_at_most(subject: Subject) -> None:
    isolated(subject)
    small = Resources(cpu=2, memory_mb=256, disk_mb=256)
    machine = await subject.engine.boot(subject.spec(resources=small))

    assert (await machine.exec(["/usr/bin/stat", "-c", "%a", "/dev/shm"])).stdout == b"1777\n"
    filled = await machine.exec(["/bin/sh", "-c", "head -c 200M /dev/zero > /dev/shm/x"])
    assert b"No space left" in filled.stderr
    size = await machine.exec(["/usr/bin/stat", "-c", "%s", "/dev/shm/x"])
    assert int(size.stdout) == 128 << 20
    assert await healthy(machine)


async def test_memory_is_limited_and_the_machine_ends_alone_or_lives_on(subject: Subject) -> None:
    needs(subject, "limits")
    small = Resources(cpu=2, memory_mb=256, disk_mb=256)
    machine, neighbour = await asyncio.gather(
        subject.engine.boot(subject.spec(resources=small)), subject.engine.boot(subject.spec())
    )
    greedy = "head -c 700000000 /dev/zero | tail -n 1 | wc -c"  # one line, so tail holds it all

    try:
        result = await machine.exec(["/bin/sh", "-c", greedy], timeout=60)
        assert b"700000000" not in result.stdout
    except AenvError:
        ended = await asyncio.wait_for(machine.wait(), 10)
        assert ended.culprit is Culprit.POLICY
        assert "memory" in ended.reason

    assert await healthy(neighbour)


async def test_processor_time_is_limited(subject: Subject) -> None:
    needs(subject, "limits")
    quarter = Resources(cpu=0.25, memory_mb=512, disk_mb=256)
    machine = await subject.engine.boot(subject.spec(resources=quarter))
    assert await healthy(machine)

    before, started = await machine.stats(), time.monotonic()
    await machine.exec(["/usr/bin/timeout", "2", "/bin/sh", "-c", "while :; do :; done"])
    after, elapsed = await machine.stats(), time.monotonic() - started

    assert after.cpu_seconds - before.cpu_seconds < 0.25 * elapsed + 0.2


async def test_a_fork_bomb_stays_inside(subject: Subject) -> None:
    needs(subject, "limits")
    machine, neighbour = await asyncio.gather(
        *(subject.engine.boot(subject.spec()) for _ in range(2))
    )
    bomb = "i=0; while [ $i -lt 6000 ]; do sleep 60 & i=$((i+1)); done"

    with suppress(AenvError):  # it ended alone, or was cut off
        await machine.exec(["/bin/sh", "-c", bomb], timeout=8)

    assert await healthy(neighbour)
    started = time.monotonic()
    await machine.destroy()
    assert time.monotonic() - started < 20
    assert subject.traces(machine.sandbox_id) == []


async def test_the_death_of_the_guests_init_is_the_guests_doing(
    subject: Subject, machine: Machine
) -> None:
    isolated(subject)
    assert await healthy(machine)

    with suppress(AenvError):  # the machine goes away under the call
        await machine.exec(["/bin/sh", "-c", "kill -9 1"], timeout=5)

    ended = await asyncio.wait_for(machine.wait(), 10)
    assert (ended.code, ended.culprit) == (137, Culprit.POLICY)
    assert "init" in ended.reason
    await machine.destroy()


async def test_a_frozen_machine_stands_still_and_goes_on(
    subject: Subject, machine: Machine
) -> None:
    needs(subject, "freeze")
    assert await healthy(machine)
    count = "i=0; while :; do i=$((i+1)); echo $i > /root/n; sleep 0.01; done"
    await machine.exec(["/bin/sh", "-c", f"({count}) >/dev/null 2>&1 &"])

    await machine.freeze()
    assert not await healthy(machine, timeout=0.5)
    still = await machine.stats()
    with pytest.raises(ConflictError):
        await machine.exec(["/bin/true"])
    assert (await machine.stats()).cpu_seconds - still.cpu_seconds < 0.05
    await machine.thaw()

    assert await healthy(machine)
    first = int((await machine.exec(["/bin/cat", "/root/n"])).stdout)
    await machine.exec(["/bin/sleep", "0.2"])
    assert int((await machine.exec(["/bin/cat", "/root/n"])).stdout) > first


async def test_freezing_and_thawing_may_be_repeated(subject: Subject, machine: Machine) -> None:
    needs(subject, "freeze")
    await machine.thaw()
    await asyncio.gather(machine.freeze(), machine.freeze())
    await asyncio.gather(machine.thaw(), machine.thaw())
    assert await healthy(machine)


async def test_a_frozen_machine_is_still_frozen_for_the_next_server(
    subject: Subject, machine: Machine
) -> None:
    needs(subject, "freeze")
    assert await healthy(machine)
    await machine.freeze()
    await subject.restart()

    adopted = await subject.engine.adopt(machine.sandbox_id)
    await adopted.thaw()

    assert await healthy(adopted)


@pytest.mark.gvisor
@pytest.mark.parametrize("is_frozen", [False, True])
async def test_a_freeze_or_thaw_that_a_dead_server_left_half_done_is_looked_into(
    subject: Subject, machine: Machine, is_frozen: bool
) -> None:
    if not isinstance(machine, GVisorMachine):
        pytest.skip("only gVisor does not tell whether it is frozen")
    assert await healthy(machine)
    if is_frozen:
        await machine.freeze()
    machine._bundle.mark_frozen(None)
    await subject.restart()

    adopted = await subject.engine.adopt(machine.sandbox_id)

    assert adopted.frozen is is_frozen
    await adopted.thaw()
    assert await healthy(adopted)
    assert not adopted.frozen


async def test_a_frozen_machine_can_be_destroyed(subject: Subject, machine: Machine) -> None:
    needs(subject, "freeze")
    await machine.freeze()
    await machine.destroy()
    assert subject.traces(machine.sandbox_id) == []


async def test_two_machines_go_on_from_one_memory_image(
    subject: Subject, machine: Machine, folder: Path
) -> None:
    needs(subject, "memory_snapshot")
    assert await healthy(machine)
    await tell(machine, {"GREETING": "from memory"})
    with pytest.raises(ConflictError, match="frozen"):
        await machine.checkpoint(folder / "image")
    await machine.freeze()

    image = await machine.checkpoint(folder / "image")
    with pytest.raises(ConflictError):
        await machine.checkpoint(folder / "image")
    disk = await machine.save_disk("s-disk")
    await machine.thaw()

    specs = [replace(subject.spec(hostname=name), disk=disk) for name in ("one", "two")]
    one, two = await asyncio.gather(*(subject.engine.restore(spec, image) for spec in specs))
    assert await healthy(machine)
    for restored in (one, two):
        assert await healthy(restored)
        assert await told(restored) == {"GREETING": "from memory"}
    boot_ids = {(await m.exec(BOOT_ID)).stdout for m in (machine, one, two)}
    assert len(boot_ids) == 3
    assert (await one.exec(["/bin/hostname"])).stdout == b"one\n"
    assert len({m.address(1).host for m in (machine, one, two)}) == 3


async def test_an_image_from_before_guests_had_shared_memory_is_restored(
    subject: Subject, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs(subject, "memory_snapshot")
    with monkeypatch.context() as patched:
        patched.setattr(Making, "_shared_memory_mb", lambda _: 0)
        machine = await subject.engine.boot(subject.spec())
    assert await healthy(machine)
    await machine.freeze()
    image = await machine.checkpoint(folder / "image")
    facts = image.path / "image.json"
    older = json.loads(facts.read_text())
    assert older.pop("shared_memory_mb") == 0
    facts.write_text(json.dumps(older))
    disk = await machine.save_disk("s-older")

    restored = await subject.engine.restore(replace(subject.spec(), disk=disk), image)

    assert await healthy(restored)


async def test_an_image_of_another_release_or_a_broken_one_is_refused_and_leaves_nothing(
    subject: Subject, machine: Machine, folder: Path
) -> None:
    needs(subject, "memory_snapshot")
    await machine.freeze()
    image = await machine.checkpoint(folder / "image")
    spec = subject.spec()

    with pytest.raises(ImageUnusableError, match="19990101"):
        await subject.engine.restore(spec, replace(image, engine_version="19990101"))
    pages = image.path / "checkpoint.img"
    pages.write_bytes(pages.read_bytes()[: pages.stat().st_size // 2])
    with pytest.raises(AenvError):
        await subject.engine.restore(spec, image)

    assert subject.traces(spec.sandbox_id) == []
