"""The OCI configuration of one machine. Pure: what goes in is all that decides."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aenv.node.engine import Bind, MachineSpec

AGENT_ARGV = ("/.aenv/agent",)
GUEST_FOLDER = "/.aenv"
GUEST_CA = "/.aenv/ca.crt"
SHARED_MEMORY = "/dev/shm"  # noqa: S108  the guest's
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"

CAPABILITIES = (
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_MKNOD",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETFCAP",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_CHROOT",
)
"""Docker's default set without raw sockets; enough for sudo. The sentry itself is held to it,
too.
"""

_RLIMITS = {
    "RLIMIT_CORE": 0,
    "RLIMIT_NOFILE": 65536,
    "RLIMIT_NPROC": 2000,
}
"""RLIMIT_NPROC stops a fork bomb of the guest's user; root's meets the pids limit of the cgroup."""


def oci_config(
    spec: MachineSpec,
    *,
    root: Path,
    guest_folder: Path,
    boot_id: Path,
    netns: Path,
    cgroup: dict[str, Any],
    shared_memory_mb: int,
    volumes: Sequence[Bind] = (),
) -> dict[str, Any]:
    """``cgroup`` holds ``cgroupsPath`` and ``resources`` (empty: no limits on this host);
    without ``shared_memory_mb`` the guest has no ``/dev/shm`` of its own.
    """
    capabilities = list(CAPABILITIES)
    environment = {"PATH": PATH, "HOME": "/root", **spec.agent_env}
    return {
        "ociVersion": "1.0.2",
        "hostname": spec.hostname,
        "root": {"path": str(root), "readonly": False},
        "process": {
            "args": list(AGENT_ARGV),
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
            "env": [f"{name}={value}" for name, value in environment.items()],
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capabilities),
            "rlimits": [
                {"type": kind, "soft": value, "hard": value} for kind, value in _RLIMITS.items()
            ],
        },
        "mounts": [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
            *_shared_memory(shared_memory_mb),
            {
                "destination": "/sys",
                "type": "sysfs",
                "source": "sysfs",
                "options": ["nosuid", "noexec", "nodev", "ro"],
            },
            _bind(Bind(guest_folder, GUEST_FOLDER)),
            _bind(Bind(boot_id, _BOOT_ID)),
            *(_bind(bind) for bind in spec.rootfs.binds),
            *(_bind(bind, "nosuid", "nodev") for bind in volumes),
        ],
        "linux": {
            "namespaces": [
                {"type": "pid"},
                {"type": "ipc"},
                {"type": "uts"},
                {"type": "mount"},
                {"type": "network", "path": str(netns)},
            ],
            **cgroup,
        },
    }


def shared_memory_mb(config: dict[str, Any]) -> int:
    """What :func:`oci_config` was given, of its result."""
    for mount in config["mounts"]:
        if mount["destination"] == SHARED_MEMORY:
            return next(int(o[5:-1]) for o in mount["options"] if o.startswith("size="))
    return 0


def _shared_memory(size_mb: int) -> list[dict[str, Any]]:
    if not size_mb:
        return []
    options = ["nosuid", "nodev", "mode=1777", f"size={size_mb}m"]
    return [
        {"destination": SHARED_MEMORY, "type": "tmpfs", "source": "shm", "options": options},
    ]


def _bind(bind: Bind, *options: str) -> dict[str, Any]:
    return {
        "destination": bind.target,
        "type": "bind",
        "source": str(bind.source),
        "options": ["rbind", "ro" if bind.read_only else "rw", *options],
    }
