"""A runsc that fails, hangs or is killed: an error in time, and nothing left."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conformance.conftest import agent_binary
from tests.conformance.subjects import Subject, healthy

from aenv.models.errors import Culprit, DiskFullError, EngineError, NotFoundError
from aenv.models.sandboxes import NetworkPolicy
from aenv.node.engines.gvisor import commands
from aenv.node.engines.gvisor.engine import GVisorEngine
from aenv.node.engines.gvisor.parts import gofer_key
from aenv.node.host import open_host

pytestmark = [
    pytest.mark.gvisor,
    pytest.mark.root,
    pytest.mark.skipif(
        not (sys.platform == "linux" and os.geteuid() == 0), reason="gVisor needs root on Linux"
    ),
]
__all__ = ["agent_binary"]


@pytest.fixture
async def subject(agent_binary: Path) -> AsyncIterator[Subject]:
    with tempfile.TemporaryDirectory(prefix="aenv-f-", ignore_cleanup_errors=True) as name:
        subject = Subject.of("gvisor", Path(name), agent_binary)
        await subject.engine.start()
        yield subject
        await subject.engine.reap(frozenset())
        await subject.engine.close()


def replace_runsc(subject: Subject, script: str) -> None:
    """Put a shell script in runsc's place; ``$real`` in it is the real one."""
    engine = subject.engine
    assert isinstance(engine, GVisorEngine)
    parts = engine._parts
    path = subject.settings.folders.data / "runsc"
    path.write_text(f"#!/bin/sh\nreal={parts.runsc.binary}\n{script}\n")
    path.chmod(0o755)
    parts.runsc.binary = path


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("echo it is broken >&2; exit 1", "it is broken"),
        ("exit 0", "left no state"),
        ("kill -9 $$", "failed"),
        ("exec sleep 300", "hung and was killed"),
        ('"$real" "$@"; exec sleep 300', "hung and was killed"),
        ('"$real" "$@" & sleep 0.1; kill -9 $$', "failed"),
        ('"$real" "$@"; exit 1', "failed"),
    ],
)
async def test_nothing_is_left_of_a_runsc_that_fails(
    subject: Subject, monkeypatch: pytest.MonkeyPatch, script: str, words: str
) -> None:
    monkeypatch.setattr(commands, "_START_TIMEOUT", 2)
    replace_runsc(subject, script)
    spec = subject.spec()

    with pytest.raises(EngineError, match=words):
        await subject.engine.boot(spec)

    assert subject.traces(spec.sandbox_id) == []


async def test_a_boot_that_hangs_does_not_stop_others_for_good(
    subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(commands, "_START_TIMEOUT", 1)
    replace_runsc(subject, "exec sleep 300")
    boots = [subject.engine.boot(subject.spec()) for _ in range(6)]

    results = await asyncio.gather(*boots, return_exceptions=True)

    assert all(isinstance(result, EngineError) for result in results)
    replace_runsc(subject, 'exec "$real" "$@"')


async def test_a_policy_that_is_refused_fails_the_boot_and_leaves_nothing(
    subject: Subject,
) -> None:
    policy = NetworkPolicy(allow_out=("not an address",))
    spec = dataclasses.replace(subject.spec(), network=policy)

    with pytest.raises(Exception, match="not an address"):
        await subject.engine.boot(spec)

    assert subject.traces(spec.sandbox_id) == []


async def test_a_full_disk_fails_the_checkpoint_and_the_machine_goes_on(subject: Subject) -> None:
    machine = await subject.engine.boot(subject.spec())
    assert await healthy(machine)
    small = subject.settings.folders.data / "small"
    small.mkdir()
    host = open_host(subject.settings)
    host.mounts.device(Path("tmpfs"), small, kind="tmpfs", options="size=64k")
    try:
        await machine.freeze()
        with pytest.raises(DiskFullError):
            await machine.checkpoint(small / "image")
        assert list(small.iterdir()) == []
        await machine.thaw()
    finally:
        host.mounts.unmount(small)
        host.close()

    assert await healthy(machine)


async def test_what_another_boot_of_the_host_left_in_the_run_folder_is_forgotten(
    subject: Subject,
) -> None:
    await subject.engine.close()
    run = subject.settings.folders.instance_run
    stale = subject.spec().sandbox_id
    (run / "gvisor/machines" / stale).mkdir(parents=True)
    (run / "runsc").mkdir(exist_ok=True)
    (run / "runsc" / f"{stale}_sandbox:{stale}.state").write_text('{"sandbox": {"pid": 1}}')
    (run / "boot_id").write_text("another boot")

    await subject.restart()

    assert subject.traces(stale) == []
    with pytest.raises(NotFoundError):
        await subject.engine.adopt(stale)


async def test_agents_of_former_releases_are_dropped_once_nobody_runs_them(
    subject: Subject,
) -> None:
    store = subject.settings.folders.data / "gvisor/guest"
    (store / "former").mkdir(parents=True)
    machine = await subject.engine.boot(subject.spec())
    await subject.restart()
    assert (store / "former").exists()

    await (await subject.engine.adopt(machine.sandbox_id)).destroy()
    await subject.restart()

    assert not (store / "former").exists()


async def test_a_file_server_killed_from_outside_is_our_fault_not_the_guest_s(
    subject: Subject,
) -> None:
    machine = await subject.engine.boot(subject.spec())
    assert await healthy(machine)
    engine = subject.engine
    assert isinstance(engine, GVisorEngine)
    gofer = await engine._parts.supervisor.status(gofer_key(machine.sandbox_id))
    assert gofer is not None

    os.kill(gofer.pid, signal.SIGKILL)

    async with asyncio.timeout(60):
        ended = await machine.wait()
    assert ended.culprit is Culprit.INFRASTRUCTURE
    assert "SIGKILL" in ended.reason
