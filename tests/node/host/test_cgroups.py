"""Limits as the kernel enforces them, on whichever cgroup version this host has."""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aenv.models.errors import EngineError, HostSetupError
from aenv.models.sandboxes import Resources
from aenv.node.engine import Severity
from aenv.node.host.cgroups import Cgroups
from aenv.node.host.hierarchies import Hierarchies

SANDBOX = "i" + "c" * 19
RESOURCES = Resources(cpu=0.5, memory_mb=64)


@pytest.fixture
async def cgroups() -> AsyncIterator[Cgroups]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    made = Cgroups(secrets.token_hex(4))
    if not made.available:
        pytest.skip(made.findings()[0].summary)
    yield made
    await made.reap(frozenset())
    await made.close()
    assert folders(made) == []


def folders(cgroups: Cgroups, sandbox_id: str = "") -> list[Path]:
    found = cgroups._version.everywhere(cgroups.path(sandbox_id).rstrip("/"))
    return [folder for folder in found if folder.exists()]


def spawn(cgroups: Cgroups, sandbox_id: str, code: str) -> subprocess.Popen[bytes]:
    """A Python process that enters the sandbox's groups before it runs ``code``."""
    groups = [str(folder / "cgroup.procs") for folder in folders(cgroups, sandbox_id)]
    enter = f"for group in {groups!r}: open(group, 'w').write('0')\n"
    return subprocess.Popen([sys.executable, "-c", enter + code], stdout=subprocess.PIPE)


@pytest.mark.root
async def test_what_runs_inside_is_counted_and_killed_by_destroy(cgroups: Cgroups) -> None:
    await cgroups.create(SANDBOX, RESOURCES)
    code = "kept = bytearray(20 << 20); print('ready', flush=True); import time; time.sleep(60)"
    process = spawn(cgroups, SANDBOX, code)
    assert process.stdout is not None
    await asyncio.to_thread(process.stdout.readline)
    stats = await cgroups.stats(SANDBOX)
    assert stats.pids == 1
    assert stats.memory_bytes > 15 << 20
    assert stats.cpu_seconds > 0
    await cgroups.destroy(SANDBOX)
    await cgroups.destroy(SANDBOX)
    assert process.wait(timeout=5) == -9
    assert folders(cgroups, SANDBOX) == []
    with pytest.raises(EngineError, match="no control group"):
        await cgroups.stats(SANDBOX)


@pytest.mark.root
async def test_memory_beyond_the_limit_is_the_sandboxs_end_not_the_hosts(cgroups: Cgroups) -> None:
    await cgroups.create(SANDBOX, RESOURCES)
    process = spawn(cgroups, SANDBOX, "kept = b'x' * (100 << 20)")
    assert await asyncio.to_thread(process.wait, 20) == -9
    assert (await cgroups.stats(SANDBOX)).oom_kills == 1


@pytest.mark.root
async def test_groups_below_and_those_of_dead_sandboxes_are_reaped(cgroups: Cgroups) -> None:
    other = "i" + "d" * 19
    await cgroups.create(SANDBOX, RESOURCES)
    await cgroups.create(other, RESOURCES)
    for folder in folders(cgroups, other):
        (folder / "below").mkdir()
    assert await cgroups.reap(frozenset({SANDBOX})) == [other]
    assert folders(cgroups, other) == []
    assert folders(cgroups, SANDBOX) != []


@pytest.mark.root
async def test_creating_twice_sets_the_newer_limits(cgroups: Cgroups) -> None:
    await cgroups.create(SANDBOX, RESOURCES)
    await cgroups.create(SANDBOX, Resources(cpu=1, memory_mb=128))
    process = spawn(cgroups, SANDBOX, "kept = b'x' * (90 << 20)")
    assert await asyncio.to_thread(process.wait, 20) == 0


def test_the_oci_part_names_the_same_limits() -> None:
    groups = Cgroups("0a1b2c3d", overhead_mb=32)
    assert groups.oci(SANDBOX, RESOURCES) == {
        "cgroupsPath": f"/aenv/0a1b2c3d/{SANDBOX}",
        "resources": {
            "cpu": {"quota": 50_000, "period": 100_000},
            "memory": {"limit": 96 << 20},
            "pids": {"limit": 4096},
        },
    }


def mountinfo(folder: Path, *lines: str) -> Path:
    file = folder / "mountinfo"
    file.write_text("".join(f"25 1 0:22 / {line}\n" for line in lines))
    return file


def test_a_hybrid_host_uses_the_v1_controllers(tmp_path: Path) -> None:
    found = Hierarchies.find(
        mountinfo(
            tmp_path,
            "/cg/cpu rw shared:1 - cgroup cgroup rw,cpu,cpuacct",
            "/cg/memory rw - cgroup cgroup rw,memory",
            "/cg/pids rw - cgroup cgroup rw,pids",
            "/cg/blkio rw - cgroup cgroup rw,blkio",
            "/cg/unified rw - cgroup2 cgroup2 rw",
        )
    )
    assert found.v1["cpuacct"] == found.v1["cpu"] == Path("/cg/cpu")
    assert found.others == (Path("/cg/blkio"),)
    assert found.unified is None
    assert found.missing == []


async def test_a_v2_tree_gets_controllers_enabled_on_the_way_down(tmp_path: Path) -> None:
    """A folder stands in for the kernel's tree: same files, no enforcement."""
    (tmp_path / "cgroup.controllers").write_text("cpu io memory pids")
    for folder in (tmp_path, tmp_path / "aenv", tmp_path / "aenv/0a1b2c3d"):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.subtree_control").write_text("")
    tree = Hierarchies.find(mountinfo(tmp_path, f"{tmp_path} rw - cgroup2 cgroup2 rw"))
    cgroups = Cgroups("0a1b2c3d", hierarchies=tree)
    await cgroups.create(SANDBOX, RESOURCES)
    group = tmp_path / "aenv/0a1b2c3d" / SANDBOX
    assert (group / "cpu.max").read_text() == "50000 100000"
    assert (group / "memory.max").read_text() == str(64 << 20)
    for folder in (tmp_path, tmp_path / "aenv", tmp_path / "aenv/0a1b2c3d"):
        assert (folder / "cgroup.subtree_control").read_text() == "+cpu +memory +pids"
    (group / "cpu.stat").write_text("usage_usec 2500000\nuser_usec 1\n")
    (group / "memory.current").write_text("1000")
    (group / "memory.stat").write_text("anon 1\ninactive_file 300\n")
    (group / "memory.events").write_text("max 9\noom_kill 2\n")
    (group / "pids.current").write_text("7")
    stats = await cgroups.stats(SANDBOX)
    assert (stats.cpu_seconds, stats.memory_bytes, stats.pids) == (2.5, 700, 7)
    assert stats.oom_kills == 2


async def test_a_host_without_controllers_says_so(tmp_path: Path) -> None:
    cgroups = Cgroups("0a1b2c3d", hierarchies=Hierarchies.find(mountinfo(tmp_path)))
    assert not cgroups.available
    [finding] = cgroups.findings()
    assert finding.severity is Severity.WARNING
    assert "no controller for cpu" in finding.summary
    with pytest.raises(HostSetupError, match="cannot limit"):
        await cgroups.create(SANDBOX, RESOURCES)


async def test_a_tree_that_others_own_is_refused_with_the_reason(tmp_path: Path) -> None:
    """A container's v2 root holds processes: enabling controllers there is an error."""
    (tmp_path / "cgroup.controllers").write_text("cpu memory pids")
    (tmp_path / "cgroup.subtree_control").write_text("")
    (tmp_path / "cgroup.type").write_text("domain")
    (tmp_path / "cgroup.procs").write_text("1")
    tree = Hierarchies.find(mountinfo(tmp_path, f"{tmp_path} rw - cgroup2 cgroup2 rw"))
    cgroups = Cgroups("0a1b2c3d", hierarchies=tree)
    assert not cgroups.available
    assert "holds processes itself" in cgroups.findings()[0].summary
    assert not (tmp_path / "aenv").exists()


@pytest.mark.root
async def test_looking_changes_nothing() -> None:
    cgroups = Cgroups(secrets.token_hex(4))
    assert cgroups.findings() != []
    assert folders(cgroups) == []
