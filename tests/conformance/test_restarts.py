"""A server that comes back: machines that outlived it, machines that did not, and leftovers."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
from pathlib import Path

import pytest
from tests.conformance.subjects import Subject, healthy
from tests.conformance.test_life import process_of

from aenv.models.errors import Culprit, NotFoundError
from aenv.models.ids import new_sandbox_id
from aenv.node.engine import Machine
from aenv.node.supervisor.client import SupervisorClient

ROOT = Path(__file__).parents[2]


async def test_a_machine_that_outlived_the_server_is_taken_over(
    subject: Subject, machine: Machine
) -> None:
    assert await healthy(machine)
    before = machine.address(49983)
    await subject.restart()

    adopted = await subject.engine.adopt(machine.sandbox_id)

    assert adopted.address(49983) == before
    assert await healthy(adopted)
    assert (await adopted.exec(["/bin/echo", "still here"])).stdout == b"still here\n"
    assert (await adopted.stats()).memory_bytes > 0
    await adopted.destroy()
    assert subject.traces(machine.sandbox_id) == []


async def test_the_exit_of_a_machine_that_died_meanwhile_is_known(
    subject: Subject, machine: Machine
) -> None:
    pid = await process_of(subject, machine)
    await subject.engine.close()
    os.kill(pid, signal.SIGKILL)
    await subject.restart()

    adopted = await subject.engine.adopt(machine.sandbox_id)

    ended = await asyncio.wait_for(adopted.wait(), 10)
    assert (ended.code, ended.culprit) == (137, Culprit.INFRASTRUCTURE)
    await adopted.destroy()
    assert subject.traces(machine.sandbox_id) == []


async def test_a_machine_survives_the_death_of_its_supervisor(
    subject: Subject, machine: Machine
) -> None:
    assert await healthy(machine)
    pid = await process_of(subject, machine)
    client = SupervisorClient(subject.settings.folders.instance_run)
    await client.start()
    assert client.pid is not None
    os.kill(client.pid, signal.SIGKILL)
    await client.close()

    assert await healthy(machine)
    assert (await machine.exec(["/bin/echo", "hello"])).stdout == b"hello\n"
    os.kill(pid, signal.SIGKILL)
    ended = await asyncio.wait_for(machine.wait(), 20)

    assert ended.code is None
    assert ended.culprit is Culprit.INFRASTRUCTURE
    assert "unknown" in ended.reason
    await machine.destroy()
    assert subject.traces(machine.sandbox_id) == []


async def test_machines_nobody_keeps_are_reaped_and_others_are_not(subject: Subject) -> None:
    kept, orphan = await asyncio.gather(*(subject.engine.boot(subject.spec()) for _ in range(2)))
    await subject.restart()

    reaped = await subject.engine.reap(frozenset({kept.sandbox_id}))

    assert reaped == [orphan.sandbox_id]
    assert subject.traces(orphan.sandbox_id) == []
    adopted = await subject.engine.adopt(kept.sandbox_id)
    assert await healthy(adopted)


@pytest.mark.parametrize("delay", [0.01, 0.05, 0.12, 0.2, 0.3, 5])
async def test_nothing_is_left_of_a_boot_during_which_the_server_died(
    engine_name: str, folder: Path, agent_binary: Path, delay: float
) -> None:
    sandbox_id = new_sandbox_id()
    arguments = (engine_name, str(folder), str(agent_binary), sandbox_id, str(delay))
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.conformance.dying_server", *arguments, cwd=ROOT
    )
    assert await asyncio.wait_for(server.wait(), 60) == 0

    subject = Subject.of(engine_name, folder, agent_binary)
    await subject.engine.start()
    await subject.engine.reap(frozenset())

    assert subject.traces(sandbox_id) == []
    await subject.engine.close()


async def test_an_unknown_machine_is_not_adopted(subject: Subject) -> None:
    with pytest.raises(NotFoundError):
        await subject.engine.adopt(subject.spec().sandbox_id)


async def test_two_instances_do_not_see_each_other(subject: Subject, agent_binary: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="aenv-c-", ignore_cleanup_errors=True) as name:
        other = Subject.of(subject.name, Path(name), agent_binary)
        await other.engine.start()
        try:
            mine, theirs = await asyncio.gather(
                subject.engine.boot(subject.spec()), other.engine.boot(other.spec())
            )

            assert await other.engine.reap(frozenset({theirs.sandbox_id})) == []
            with pytest.raises(NotFoundError):
                await other.engine.adopt(mine.sandbox_id)

            assert await healthy(mine)
            assert await healthy(theirs)
            await theirs.destroy()
            assert await healthy(mine)
        finally:
            await other.engine.reap(frozenset())
            await other.engine.close()
