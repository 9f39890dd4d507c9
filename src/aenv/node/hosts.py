"""What the host has and has left: CPU, memory, disk, kernel."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from aenv._version import __version__
from aenv.models.pools import PoolReport
from aenv.node import memory_groups
from aenv.node.engine import Capabilities
from aenv.node.port import NodeInfo


@dataclass(frozen=True, slots=True)
class Headroom:
    """Bytes that can be used now."""

    memory: int
    disk: int


def measure_headroom(folder: Path, instance: str = "") -> Headroom:
    """Memory of the host, or of the control group we are in where that is less; disk where
    ``folder`` is. ``instance`` names the groups of our sandboxes.
    """
    free = shutil.disk_usage(existing(folder)).free
    return Headroom(memory=memory_available(instance), disk=free)


def memory_available(instance: str = "") -> int:
    available: int = psutil.virtual_memory().available
    return min([available, *(group.available for group in memory_groups.limits(instance))])


def memory_total() -> int:
    total: int = psutil.virtual_memory().total
    return min([total, *(group.limit for group in memory_groups.limits(""))])


def describe(
    node_id: str,
    capabilities: tuple[Capabilities, ...],
    folder: Path,
    headroom: Headroom,
    pools: PoolReport,
) -> NodeInfo:
    return NodeInfo(
        node_id=node_id,
        version=__version__,
        capabilities=capabilities,
        cpu_count=psutil.cpu_count() or 1,
        cpu_percent=psutil.cpu_percent(interval=None),
        memory_total=memory_total(),
        memory_available=headroom.memory,
        disk_total=shutil.disk_usage(existing(folder)).total,
        disk_available=headroom.disk,
        kernel=platform.release(),
        machine=platform.machine(),
        pools=pools,
    )


def existing(folder: Path) -> Path:
    """``folder`` or its nearest ancestor that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
