"""Run a script on a root file system under the real runsc, as the gvisor engine would mount it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from aenv.node.engine import Rootfs
from aenv.node.host import Host

needs_gvisor = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="needs root on Linux"
)

_CAPABILITIES = [
    "CAP_AUDIT_WRITE",
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FOWNER",
    "CAP_FSETID",
    "CAP_KILL",
    "CAP_NET_BIND_SERVICE",
    "CAP_SETGID",
    "CAP_SETPCAP",
    "CAP_SETUID",
    "CAP_SYS_ADMIN",
    "CAP_SYS_CHROOT",
]
_PATH = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
AS_USER = "setpriv --reuid 1000 --regid 1000 --init-groups env HOME=/home/user USER=user "


def run_in_gvisor(host: Host, runsc: Path, rootfs: Rootfs, script: str, scratch: Path) -> str:
    """What ``bash -c script`` prints as the guest's root; fails the test if it fails."""
    with _merged(host, rootfs, scratch) as root:
        bundle = scratch / "bundle"
        bundle.mkdir()
        (bundle / "config.json").write_text(json.dumps(_spec(root, rootfs, script)))
        flags = ["--platform=systrap", "--network=none", "--overlay2=none", "--allow-suid"]
        command = [str(runsc), "--root", str(scratch / "state"), *flags, "--ignore-cgroups"]
        done = subprocess.run(
            [*command, "run", "--bundle", str(bundle), f"image{os.getpid():015d}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=180,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@contextmanager
def _merged(host: Host, rootfs: Rootfs, scratch: Path) -> Iterator[Path]:
    folders = [scratch / name for name in ("merged", "upper", "work")]
    for folder in folders:
        folder.mkdir()
    merged, upper, work = folders
    with ExitStack() as undo:
        host.mounts.overlay(rootfs.lowers, upper, work, merged)
        undo.callback(host.mounts.unmount, merged)
        for bind in rootfs.binds:
            (merged / bind.target.lstrip("/")).mkdir(parents=True, exist_ok=True)
        yield merged
    shutil.rmtree(work, ignore_errors=True)


def _spec(root: Path, rootfs: Rootfs, script: str) -> dict[str, object]:
    binds = [
        {
            "destination": bind.target,
            "type": "bind",
            "source": str(bind.source),
            "options": ["rbind", "ro" if bind.read_only else "rw"],
        }
        for bind in rootfs.binds
    ]
    process = {
        "args": ["/bin/bash", "-ec", script],
        "cwd": "/",
        "user": {"uid": 0, "gid": 0},
        "env": [_PATH],
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), _CAPABILITIES),
    }
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]},
        *binds,
    ]
    kinds = ("pid", "ipc", "uts", "mount", "network")
    return {
        "ociVersion": "1.0.0",
        "hostname": "sandbox",
        "root": {"path": str(root), "readonly": False},
        "process": process,
        "mounts": mounts,
        "linux": {"namespaces": [{"type": kind} for kind in kinds]},
    }
