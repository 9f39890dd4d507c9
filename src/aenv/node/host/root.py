"""The host as root sees it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from aenv.models.errors import HostSetupError
from aenv.models.settings import Settings
from aenv.node.engine import Finding, Severity
from aenv.node.host.firewall import RootFirewall
from aenv.node.host.kernel import RootKernel
from aenv.node.host.links import RootLinks
from aenv.node.host.loops import RootLoopDevices
from aenv.node.host.mounts import RootMounts
from aenv.node.host.port import Host
from aenv.node.host.volumes import RootVolumes

_TOOLS = {"nft": "nftables", "mkfs.btrfs": "btrfs-progs"}
_CAP_SYS_ADMIN, _CAP_NET_ADMIN = 21, 12


class RootHost(Host):
    def __init__(self, settings: Settings) -> None:
        missing = _missing_rights()
        if missing:
            raise HostSetupError(
                f"The gvisor engine needs root on this host ({missing}). "
                "Start it with: sudo aenv server"
            )
        self.settings = settings
        self.loops = RootLoopDevices()
        self.mounts = RootMounts(self.loops)
        self.volumes = RootVolumes()
        self.links = RootLinks()
        self.firewall = RootFirewall()
        self.kernel = RootKernel()

    def findings(self) -> list[Finding]:
        return [*_tool_findings(), _filesystem_finding("overlay"), _loop_finding()]

    def close(self) -> None:
        """Nothing stays open between calls."""


def _missing_rights() -> str:
    """What this process may not do, in words; empty if it has the rights."""
    if os.geteuid() != 0:
        return f"it runs as uid {os.geteuid()}"
    if not owns_host():
        return "root of a user namespace alone, as in a rootless container"
    effective = _effective_capabilities()
    lacking = [
        name
        for name, bit in (("CAP_SYS_ADMIN", _CAP_SYS_ADMIN), ("CAP_NET_ADMIN", _CAP_NET_ADMIN))
        if not effective >> bit & 1
    ]
    return (
        f"root without {' and '.join(lacking)}: a container without --privileged" if lacking else ""
    )


def owns_host(uid_map: Path = Path("/proc/self/uid_map")) -> bool:
    """Whether root here is root of the host; user_namespaces(7)."""
    try:
        return uid_map.read_text().split() == ["0", "0", str(2**32 - 1)]
    except OSError:  # a kernel without user namespaces
        return True


def _effective_capabilities() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return int(line.split()[1], 16)
    return 0


def _tool_findings() -> list[Finding]:
    return [
        Finding("tools", Severity.OK, f"{tool} is installed")
        if shutil.which(tool)
        else Finding(
            "tools", Severity.MISSING, f"{tool} is missing", f"apt-get install -y {package}"
        )
        for tool, package in _TOOLS.items()
    ]


def _filesystem_finding(kind: str) -> Finding:
    known = Path("/proc/filesystems").read_text().split()
    if kind in known or Path(f"/sys/module/{kind}").exists():
        return Finding("disk", Severity.OK, f"the kernel has {kind}")
    return Finding("disk", Severity.WARNING, f"{kind} is not loaded", f"modprobe {kind}")


def _loop_finding() -> Finding:
    if Path("/dev/loop-control").exists():
        return Finding("disk", Severity.OK, "loop devices are available")
    return Finding(
        "disk", Severity.WARNING, "no loop devices: disks cannot be limited", "modprobe loop"
    )
