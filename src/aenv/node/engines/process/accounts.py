"""Figures of a process tree, and its members."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import psutil

from aenv.node.engine import MachineStats

GONE = (psutil.NoSuchProcess, psutil.AccessDenied)


def descendants(pid: int) -> list[psutil.Process]:
    """Everything ``pid`` started that still runs, also in sessions of its own."""
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except GONE:
        return []


def measure(pid: int, folder: Path) -> MachineStats:
    """The tree's own figures; the disk's are the host's, nothing is limited."""
    cpu, memory, processes = 0.0, 0, 0
    with suppress(*GONE):
        for process in [psutil.Process(pid), *descendants(pid)]:
            with suppress(*GONE):
                times = process.cpu_times()
                cpu += times.user + times.system
                memory += process.memory_info().rss
                processes += 1
    disk = shutil.disk_usage(folder)
    return MachineStats(cpu, memory, processes, disk.used, disk.total)
