"""What an instance keeps in its run folder beyond its server's life, and removing the folder when
that is nothing. Blocking.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

from aenv.models.folders import Folders
from aenv.node.engines.folders import subfolders

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_SUPERVISOR_TIMEOUT = 10.0
_POLL = 0.02


def machines(folders: Folders) -> list[str]:
    """The sandboxes whose machines may still run, whether a server does or not."""
    found = subfolders(folders.data / "process")
    if _is_of_this_boot(folders.instance_run):
        found |= subfolders(folders.instance_run / "gvisor" / "machines")
    return sorted(found)


def exist(folders: Folders) -> bool:
    return folders.instance_run.exists() or bool(machines(folders))


def remove(folders: Folders) -> bool:
    """Remove the run folder once the supervisor has ended; the caller holds the data folder.

    False, and nothing is touched, while a machine or a mount is left in it.
    """
    run = folders.instance_run
    if not run.exists():
        return True
    if machines(folders) or _is_mounted_below(run) or not _supervisor_ended(run):
        return False
    shutil.rmtree(run, ignore_errors=True)
    return not run.exists()


def _is_of_this_boot(run: Path) -> bool:
    """Without a kernel that numbers its boots nothing is known to be stale."""
    try:
        return (run / "boot_id").read_text() == _BOOT_ID.read_text().strip()
    except OSError:
        return True


def _is_mounted_below(run: Path) -> bool:
    try:
        lines = Path("/proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return False
    targets = (line.split(" ")[4].encode().decode("unicode_escape") for line in lines)
    return any(target.startswith(f"{run}/") for target in targets)


def _supervisor_ended(run: Path) -> bool:
    """It ends by itself soon after it was told to; its lock tells when."""
    try:
        lock = os.open(run / "supervisor.lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    deadline = time.monotonic() + _SUPERVISOR_TIMEOUT
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() > deadline:
                    return False
                time.sleep(_POLL)
            else:
                return True
    finally:
        os.close(lock)
