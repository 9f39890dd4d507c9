"""The run folder of an instance goes when nothing runs there, and only then."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from aenv.models.folders import Folders
from aenv.node import leftovers
from aenv.node.supervisor.client import SupervisorClient

THIS_BOOT = Path("/proc/sys/kernel/random/boot_id").read_text().strip()


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(*(tmp_path / name for name in ("data", "cache", "config", "run")))


def machine(folders: Folders, name: str, boot_id: str = THIS_BOOT) -> None:
    (folders.instance_run / "gvisor" / "machines" / name).mkdir(parents=True)
    (folders.instance_run / "boot_id").write_text(boot_id)


def test_nothing_is_left_where_nothing_was(folders: Folders) -> None:
    assert not leftovers.exist(folders)
    assert leftovers.machines(folders) == []
    assert leftovers.remove(folders)


def test_machines_of_every_engine_are_found(folders: Folders) -> None:
    machine(folders, "i1")
    (folders.data / "process" / "i2").mkdir(parents=True)
    assert leftovers.machines(folders) == ["i1", "i2"]
    assert not leftovers.remove(folders)
    assert folders.instance_run.exists()


def test_machines_of_another_boot_are_gone(folders: Folders) -> None:
    machine(folders, "i1", boot_id="another boot")
    assert leftovers.machines(folders) == []
    assert leftovers.remove(folders)
    assert not leftovers.exist(folders)


async def test_a_supervisor_that_is_going_is_waited_for(folders: Folders) -> None:
    supervisor = SupervisorClient(folders.instance_run)
    await supervisor.start()
    await supervisor.retire()
    removing = asyncio.create_task(asyncio.to_thread(leftovers.remove, folders))
    await supervisor.close()
    assert await removing
    assert not folders.instance_run.exists()


async def test_a_supervisor_that_stays_keeps_its_folder(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leftovers, "_SUPERVISOR_TIMEOUT", 0.05)
    supervisor = SupervisorClient(folders.instance_run)
    await supervisor.start()
    try:
        assert not await asyncio.to_thread(leftovers.remove, folders)
        assert (folders.instance_run / "supervisor.lock").exists()
    finally:
        await supervisor.shutdown()
