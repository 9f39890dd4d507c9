"""Booting, talking to, and ending a machine."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from pathlib import Path

import pytest
from tests.conformance.subjects import Subject, healthy

from aenv.models.errors import AenvError, ConflictError, Culprit, EngineError
from aenv.node.engine import Machine, Rootfs
from aenv.node.supervisor.client import SupervisorClient


async def test_the_agent_of_a_booted_machine_answers(machine: Machine) -> None:
    assert await healthy(machine)


async def test_a_program_runs_with_its_output_and_exit_code(machine: Machine) -> None:
    result = await machine.exec(["/bin/sh", "-c", "echo out; echo err >&2; exit 7"])

    assert (result.exit_code, result.stdout, result.stderr) == (7, b"out\n", b"err\n")


async def test_a_program_that_is_not_there_is_an_error_and_harms_nothing(machine: Machine) -> None:
    with pytest.raises(EngineError, match="/no/such/program"):
        await machine.exec(["/no/such/program"])
    assert await healthy(machine)


async def test_a_program_that_does_not_end_is_killed_at_its_timeout(machine: Machine) -> None:
    with pytest.raises(EngineError, match=r"0\.3 s"):
        await machine.exec(["/bin/sleep", "120"], timeout=0.3)

    assert await healthy(machine)


async def test_figures_grow_from_zero(machine: Machine) -> None:
    async with asyncio.timeout(10):
        while (stats := await machine.stats()).cpu_seconds == 0:  # it is counted in ticks
            assert await healthy(machine)

    assert stats.memory_bytes > 1 << 20
    assert stats.processes >= 1
    assert stats.disk_limit_bytes > stats.disk_used_bytes >= 0


async def test_nothing_is_left_of_a_destroyed_machine(subject: Subject) -> None:
    machine = await subject.engine.boot(subject.spec())
    assert await healthy(machine)
    assert subject.traces(machine.sandbox_id), "the eye for traces must see a living machine"

    await machine.destroy()

    assert subject.traces(machine.sandbox_id) == []
    assert (await machine.wait()).culprit is Culprit.CALLER


async def test_a_tree_deeper_than_python_recurses_goes_with_its_machine(subject: Subject) -> None:
    machine = await subject.engine.boot(subject.spec())
    result = await machine.exec(["/bin/mkdir", "-p", "d/" * 1500])
    assert result.exit_code == 0, result

    await machine.destroy()

    assert subject.traces(machine.sandbox_id) == []


async def test_destroying_twice_and_at_once_is_fine(machine: Machine, subject: Subject) -> None:
    await asyncio.gather(machine.destroy(), machine.destroy())
    await machine.destroy()

    assert subject.traces(machine.sandbox_id) == []
    with pytest.raises(EngineError, match="destroyed"):
        await machine.exec(["/bin/true"])


async def test_nothing_is_left_of_a_boot_that_fails(subject: Subject, folder: Path) -> None:
    not_a_program = folder / "agent"
    not_a_program.write_text("this is no agent")
    not_a_program.chmod(0o755)
    spec = subject.spec(agent=not_a_program)

    with pytest.raises(AenvError):
        await subject.engine.boot(spec)

    assert subject.traces(spec.sandbox_id) == []


async def test_nothing_is_left_of_a_boot_without_its_files(subject: Subject, folder: Path) -> None:
    spec = dataclasses.replace(
        subject.spec(agent=folder / "absent"), rootfs=Rootfs((folder / "absent",))
    )

    with pytest.raises((AenvError, OSError)):
        await subject.engine.boot(spec)

    assert subject.traces(spec.sandbox_id) == []


@pytest.mark.parametrize("delay", [0, 0.005, 0.02, 0.05, 0.1, 0.15])
async def test_nothing_is_left_of_a_boot_that_is_cancelled(subject: Subject, delay: float) -> None:
    spec = subject.spec()
    boot = asyncio.create_task(subject.engine.boot(spec))
    await asyncio.wait({boot}, timeout=delay)
    boot.cancel()

    await asyncio.wait({boot})

    if not boot.cancelled():
        await boot.result().destroy()
    assert subject.traces(spec.sandbox_id) == []


async def test_a_second_machine_of_the_same_id_is_refused(subject: Subject) -> None:
    spec = subject.spec()
    machine = await subject.engine.boot(spec)

    with pytest.raises(ConflictError):
        await subject.engine.boot(spec)

    assert await healthy(machine)


async def test_eight_machines_boot_at_once(subject: Subject) -> None:
    machines = await asyncio.gather(*(subject.engine.boot(subject.spec()) for _ in range(8)))

    assert all(await asyncio.gather(*(healthy(machine) for machine in machines)))
    addresses = {machine.address(49983) for machine in machines}
    assert len(addresses) == 8
    await asyncio.gather(*(machine.destroy() for machine in machines))


async def test_a_machine_killed_from_outside_is_our_failure(
    subject: Subject, machine: Machine
) -> None:
    assert await healthy(machine)

    os.kill(await process_of(subject, machine), 9)

    ended = await asyncio.wait_for(machine.wait(), 10)
    assert (ended.code, ended.culprit) == (137, Culprit.INFRASTRUCTURE)
    with pytest.raises(EngineError, match="has ended"):
        await machine.stats()
    await machine.destroy()
    assert subject.traces(machine.sandbox_id) == []


async def test_an_end_can_be_awaited_by_many_and_afterwards(
    subject: Subject, machine: Machine
) -> None:
    waiting = [asyncio.create_task(machine.wait()) for _ in range(3)]
    os.kill(await process_of(subject, machine), 9)

    ends = await asyncio.gather(*waiting)

    assert {*ends, await machine.wait()} == {ends[0]}


async def process_of(subject: Subject, machine: Machine) -> int:
    """The pid that carries the machine."""
    client = SupervisorClient(subject.settings.folders.instance_run)
    await client.start()
    try:
        found = {record.key: record.pid for record in await client.records()}
    finally:
        await client.close()
    key = machine.sandbox_id
    return found[key] if key in found else found[f"process-{key}"]
