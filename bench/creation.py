"""Create → first command, beside ``runsc run`` of the same command on the same image."""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from aenv import Sandbox
from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.node.host import open_host
from aenv.node.host.cgroups import Cgroups
from aenv.node.images import ImageStore
from aenv.node.runsc import find
from bench.harness import API_KEY, Row, interleave, live_server, spread

COMMAND = ["/bin/bash", "-l", "-c", "true"]


def run(runs: int) -> Iterator[Row]:
    runs = min(runs, 20)
    with live_server() as server, raw_machine(Folders.resolve(server.env)) as floor:
        alive: list[Sandbox] = []

        def create() -> None:
            alive.append(Sandbox.create("base", url=server.url, api_key=API_KEY))

        def first() -> None:
            create()
            alive[-1].exec("true")

        def kill() -> None:
            alive.pop().kill()

        samples: dict[str, list[float]] = {}
        for _ in range(runs):
            once = interleave(1, floor=floor, first=first, kill=kill, create=create)
            alive.pop().kill()
            for name, values in once.items():
                samples.setdefault(name, []).extend(values)
        figures = {name: spread([1000 * s for s in values]) for name, values in samples.items()}
    raw = figures["floor"]["p50"]
    yield Row("creation", "runsc run + command", raw, "ms", detail=figures["floor"])
    yield Row(
        "creation", "create alone", figures["create"]["p50"], "ms", raw, detail=figures["create"]
    )
    yield Row(
        "creation",
        "create → first command",
        figures["first"]["p50"],
        "ms",
        raw,
        "≤ 1.3×",
        detail=figures["first"],
    )
    yield Row("creation", "kill", figures["kill"]["p50"], "ms", detail=figures["kill"])


@contextmanager
def raw_machine(folders: Folders) -> Iterator[Callable[[], object]]:
    """The floor: runsc run by hand on the same image, namespace and overlay made ahead."""
    name = f"aenvbench{secrets.token_hex(4)}"
    binary = asyncio.run(find(folders)).path
    with base_image(folders) as work:
        subprocess.run(["ip", "netns", "add", name], check=True)
        try:
            for folder in ("upper", "work", "merged"):
                (work / folder).mkdir()
            options = f"lowerdir={work}/lower,upperdir={work}/upper,workdir={work}/work"
            mount = ["mount", "-t", "overlay", "overlay", "-o", options, str(work / "merged")]
            subprocess.run(mount, check=True)
            (work / "config.json").write_text(json.dumps(_config(work, name, folders.instance)))
            flags = [f"--root={work}/state", "--platform=systrap", "--overlay2=none"]
            command = [str(binary), *flags, "run", f"-bundle={work}", name]
            yield lambda: subprocess.run(command, check=True, capture_output=True, timeout=60)
        finally:
            subprocess.run(["umount", str(work / "merged")], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "del", name], check=False)


@contextmanager
def base_image(folders: Folders) -> Iterator[Path]:
    """A folder of our own with the base image mounted on ``lower``, read-only."""
    with tempfile.TemporaryDirectory(prefix="aenv-bench-raw-") as base:
        work = Path(base)
        asyncio.run(_mount_image(folders, work))
        try:
            yield work
        finally:
            subprocess.run(["umount", str(work / "lower")], check=True)


async def _mount_image(folders: Folders, work: Path) -> None:
    """Once more for ourselves, so that the server's mounts stay its own."""
    settings = Settings(folders=replace(folders, data=work / "data", run=work / "run"))
    images = ImageStore(settings, open_host(settings))
    image = await images.open("base")
    (work / "lower").mkdir()
    bind = ["mount", "--bind", str(image.rootfs.lowers[0]), str(work / "lower")]
    subprocess.run(bind, check=True)  # noqa: ASYNC221
    await images.close()


def _config(work: Path, netns: str, instance: str) -> dict[str, Any]:
    mounts = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs"},
        {"destination": "/sys", "type": "sysfs", "source": "sysfs"},
    ]
    namespaces: list[dict[str, str]] = [{"type": kind} for kind in ("pid", "ipc", "uts", "mount")]
    namespaces.append({"type": "network", "path": f"/run/netns/{netns}"})
    limits = {"memory": {"limit": 1 << 30}, "cpu": {"quota": 200000, "period": 100000}}
    return {
        "ociVersion": "1.0.2",
        "root": {"path": str(work / "merged")},
        "process": {
            "args": COMMAND,
            "cwd": "/",
            "user": {"uid": 0, "gid": 0},
            "env": ["PATH=/bin"],
        },
        "mounts": mounts,
        "linux": {
            "cgroupsPath": Cgroups(instance).path(netns),
            "resources": limits,
            "namespaces": namespaces,
        },
    }
