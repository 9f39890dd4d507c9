"""What the host has and has left: CPU, memory, disk, kernel."""

from __future__ import annotations

import platform
import shutil
from dataclasses import dataclass
from pathlib import Path

import psutil

from aenv._version import __version__
from aenv.node.engine import Capabilities
from aenv.node.port import NodeInfo

_CGROUP_LIMITS = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
    ),
)


@dataclass(frozen=True, slots=True)
class Headroom:
    """Bytes that can be used now."""

    memory: int
    disk: int


def measure_headroom(folder: Path) -> Headroom:
    """Memory of the host (or the container we run in), and disk where ``folder`` is."""
    return Headroom(memory=memory_available(), disk=shutil.disk_usage(existing(folder)).free)


def memory_available() -> int:
    available: int = psutil.virtual_memory().available
    return min([available, *(limit - used for limit, used in _container_limits())])


def memory_total() -> int:
    total: int = psutil.virtual_memory().total
    return min([total, *(limit for limit, _ in _container_limits())])


def describe(
    node_id: str, capabilities: tuple[Capabilities, ...], folder: Path, headroom: Headroom
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
    )


def existing(folder: Path) -> Path:
    """``folder`` or its nearest ancestor that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder


def _container_limits() -> list[tuple[int, int]]:
    """(limit, use) of the cgroup this process sees as its root, where one is set."""
    found = []
    for limit_file, used_file in _CGROUP_LIMITS:
        try:
            found.append((int(Path(limit_file).read_text()), int(Path(used_file).read_text())))
        except (OSError, ValueError):
            continue
    return found
