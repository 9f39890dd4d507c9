"""What the control groups above us grant, read from folders laid out as the kernel does."""

from __future__ import annotations

from pathlib import Path

import pytest

from aenv.node.memory_groups import limits, stall_file

UNLIMITED = {"v1": "9223372036854771712", "v2": "max"}


class Kernel:
    """One version's hierarchy below ``root``, and the /proc files of a process in ``group``."""

    def __init__(self, root: Path, version: str, group: str) -> None:
        self.mount, self.proc, self.version = root / "cgroup", root / "proc", version
        self.proc.mkdir()
        kind = "cgroup2 cgroup2 rw" if version == "v2" else "cgroup cgroup rw,memory"
        (self.proc / "mountinfo").write_text(f"30 20 0:1 / {self.mount} rw - {kind}\n")
        table = f"0::{group}\n" if version == "v2" else f"5:cpu:/\n4:memory:{group}\n0::/\n"
        (self.proc / "cgroup").write_text(table)
        self.group("/", limit=None, used=0)
        if version == "v2":
            (self.mount / "cgroup.controllers").write_text("cpu memory pids")

    def group(self, path: str, *, limit: int | None, used: int, cache: int = 0) -> None:
        folder = self.mount / path.strip("/")
        folder.mkdir(parents=True, exist_ok=True)
        text = UNLIMITED[self.version] if limit is None else str(limit)
        if self.version == "v2":
            names, stat = ("memory.max", "memory.current"), f"file 9\ninactive_file {cache}\n"
        else:
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
            stat = f"inactive_file 1\ntotal_inactive_file {cache}\n"
        for name, value in zip(names, (text, str(used)), strict=True):
            (folder / name).write_text(value)
        (folder / "memory.stat").write_text(stat)


@pytest.fixture(params=["v1", "v2"])
def version(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_without_a_limit_there_is_none(tmp_path: Path, version: str):
    kernel = Kernel(tmp_path, version, "/service")
    kernel.group("/service", limit=None, used=50)
    assert limits("i1", kernel.proc) == []


def test_what_sandboxes_use_in_groups_beside_ours_counts(tmp_path: Path, version: str):
    kernel = Kernel(tmp_path, version, "/system/server")
    kernel.group("/system", limit=1000, used=300, cache=100)
    kernel.group("/system/server", limit=500, used=100)
    kernel.group("/aenv/i1", limit=None, used=150, cache=30)
    kernel.group("/aenv/other", limit=None, used=9999)
    inner, outer = limits("i1", kernel.proc)
    assert (inner.limit, inner.used, inner.available) == (500, 220, 280)
    assert (outer.limit, outer.available) == (1000, 680)


def test_a_limit_above_the_sandboxes_holds_them_already(tmp_path: Path, version: str):
    kernel = Kernel(tmp_path, version, "/")
    kernel.group("/", limit=1000, used=400)
    kernel.group("/aenv/i1", limit=None, used=150)
    [limit] = limits("i1", kernel.proc)
    assert limit.available == 600


def test_in_a_container_the_path_is_of_the_host(tmp_path: Path, version: str):
    kernel = Kernel(tmp_path, version, "/docker/abc")
    kernel.group("/", limit=1000, used=1200)
    [limit] = limits("i1", kernel.proc)
    assert (limit.folder, limit.available) == (kernel.mount, 0)


def test_without_memory_groups_there_is_no_limit(tmp_path: Path):
    (tmp_path / "mountinfo").write_text("30 20 0:1 / /proc rw - proc proc rw\n")
    assert limits("i1", tmp_path) == []


def test_waits_are_those_of_the_group_that_holds_us_all_or_else_of_the_host(tmp_path: Path):
    kernel = Kernel(tmp_path, "v2", "/")
    proc = tmp_path / "host"
    proc.mkdir()
    kernel.proc.rename(proc / "self")
    own = kernel.mount / "memory.pressure"
    own.touch()
    assert stall_file(proc) == proc / "pressure" / "memory"
    kernel.group("/", limit=1000, used=0)
    assert stall_file(proc) == own
    own.unlink()
    assert stall_file(proc) == proc / "pressure" / "memory"
