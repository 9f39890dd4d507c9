"""The privileged boundary of a node: mounts, loop devices, btrfs, namespaces, firewall, cgroups.

``port.py`` holds the abstract classes, the other modules the implementation for root. Imports
models and the engine port's findings; nothing else speaks netlink or calls mount(2).
"""

from __future__ import annotations

from aenv.models.settings import Settings
from aenv.node.host.port import (
    Firewall,
    Host,
    Kernel,
    Links,
    LoopDevices,
    Mount,
    Mounts,
    Route,
    Volumes,
    VolumeUsage,
)


def open_host(settings: Settings) -> Host:
    """The implementation for this process's rights. Raises HostSetupError without root."""
    from aenv.node.host.root import RootHost

    return RootHost(settings)


__all__ = [
    "Firewall",
    "Host",
    "Kernel",
    "Links",
    "LoopDevices",
    "Mount",
    "Mounts",
    "Route",
    "VolumeUsage",
    "Volumes",
    "open_host",
]
