"""What a crash and a new boot of the host leave of one instance: its disk, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

from tests.fakes.waiting import until

from aenv.models.folders import Folders

_FORMER = "00000000-0000-4000-8000-000000000000"


async def reboot(folders: Folders, *, run_folder_stays: bool = False) -> None:
    """The server must be dead. ``run_folder_stays``: it is not on a tmpfs, so it tells of the
    former boot. What is mounted in the cache may be another instance's: it stays.
    """
    for pid in processes_of(folders.instance_run):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    await until(lambda: not processes_of(folders.instance_run), timeout=15)
    await until(lambda: _unmount(folders.data, folders.run), timeout=15)
    _unwire(folders.instance)
    await until(lambda: not _groups(folders.instance), timeout=15)
    if run_folder_stays:
        _age(folders.run, folders.instance_run)
    else:
        shutil.rmtree(folders.run)


def processes_of(run: Path) -> list[int]:
    """Those that live and have this run folder in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):
                if str(run).encode() in (entry / "cmdline").read_bytes():
                    found.append(int(entry.name))
    return found


def _unmount(*folders: Path) -> bool:
    """Whether nothing is mounted below any more."""
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    targets = [line.split(" ")[4] for line in lines]
    ours = [one for one in targets if any(one.startswith(f"{folder}/") for folder in folders)]
    for target in reversed(ours):
        subprocess.run(["umount", target], check=False, capture_output=True, timeout=30)
    return not ours


def _unwire(instance: str) -> None:
    for name in Path("/run/netns").glob(f"aenv-{instance}-*"):
        subprocess.run(["ip", "netns", "delete", name.name], check=True, timeout=30)
    table = ["nft", "delete", "table", "inet", f"aenv_{instance}"]
    subprocess.run(table, check=True, capture_output=True, timeout=30)


def _groups(instance: str) -> list[Path]:
    """Those that are left after an attempt to remove all: what was killed leaves in its time."""
    root = Path("/sys/fs/cgroup")
    found = [*root.glob(f"aenv/{instance}"), *root.glob(f"*/aenv/{instance}")]
    for group in found:
        for folder, _, _ in os.walk(group, topdown=False):
            with suppress(OSError):
                os.rmdir(folder)
    return [group for group in found if group.exists()]


def _age(run: Path, instance_run: Path) -> None:
    """Have all that a run folder says be of a former boot."""
    (instance_run / "boot_id").write_text(_FORMER)
    journal = instance_run / "supervisor.journal"
    first, *rest = journal.read_text().splitlines()
    assert json.loads(first).keys() == {"boot"}
    journal.write_text("\n".join([json.dumps({"boot": _FORMER}), *rest]) + "\n")
    for path in (run / "slots").iterdir():
        if path.name.isdigit() or path.name == "forwarding.json":
            path.write_text(json.dumps({**json.loads(path.read_text()), "boot_id": _FORMER}))
