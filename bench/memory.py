"""Memory per idle sandbox: the PSS of its processes (the guest's memory is theirs), and by how much
MemAvailable falls.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from aenv import Sandbox
from bench.harness import API_KEY, Row, live_server

COUNT = 10
MIB = 1024 * 1024


def run(runs: int) -> Iterator[Row]:
    del runs
    with live_server() as server:
        first = Sandbox.create("base", url=server.url, api_key=API_KEY)
        _settle()
        before = _available()
        more = [Sandbox.create("base", url=server.url, api_key=API_KEY) for _ in range(COUNT)]
        _settle()
        fallen = (before - _available()) / COUNT / MIB
        resident = sorted(pss_of_sandbox(sandbox.id) / MIB for sandbox in more)
        for sandbox in (first, *more):
            sandbox.kill()
    name = "per idle sandbox, PSS of its processes"
    yield Row("memory", name, resident[COUNT // 2], "MiB", budget="≤ 25 MiB")
    name = f"per idle sandbox, fall of MemAvailable over {COUNT} (quiet hosts only)"
    yield Row("memory", name, fallen, "MiB", budget="≤ 25 MiB")


def _settle() -> None:
    time.sleep(3)


def _available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise LookupError("no MemAvailable in /proc/meminfo")


def pss_of_sandbox(sandbox_id: str) -> int:
    """Of sentry and gofer, which carry the id in their arguments, and of the sentry's stubs."""
    owners = {
        int(entry.name)
        for entry in Path("/proc").iterdir()
        if entry.name.isdigit() and sandbox_id.encode() in _read(entry / "cmdline")
    }
    total = 0
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (int(entry.name) in owners or _parent(entry) in owners):
            total += pss_of(int(entry.name))
    return total


def pss_of(pid: int) -> int:
    """Bytes; 0 when there is no such process."""
    for line in _read(Path(f"/proc/{pid}/smaps_rollup")).decode().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return 0


def _parent(entry: Path) -> int:
    stat = _read(entry / "stat").decode().rpartition(")")[2].split()
    return int(stat[1]) if len(stat) > 1 else 0


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""
