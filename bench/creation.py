"""Create → first command, alone and eight at once, with machines that wait in a pool and without.

Beside it, on the same image: ``runsc run`` of the same command, and ``runsc restore`` until the
agent answers; for creates from the pool, the same command in a sandbox that runs.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
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
from bench.harness import API_KEY, NO_POOL, Row, Server, live_server, spread, timed, wait
from bench.raw import Image, Place, places, restored

COMMAND = ["/bin/bash", "-l", "-c", "true"]
COUNTS = (1, 8)


def run(runs: int) -> Iterator[Row]:
    runs = min(runs, 20)
    with ExitStack() as stack:
        bare = stack.enter_context(live_server(settings=NO_POOL))
        pooled = stack.enter_context(live_server())
        here = stack.enter_context(tempfile.TemporaryDirectory(prefix="aenv-bench-raw-"))
        resident = stack.enter_context(_create(bare))
        image = Image.of(bare, resident, Path(here) / "image")
        raw = stack.enter_context(places(bare, image, max(COUNTS), Path(here) / "raw"))
        folders = Folders.resolve(bare.env)
        machines = [stack.enter_context(raw_machine(folders)) for _ in range(max(COUNTS))]
        _fill(pooled, max(COUNTS))
        for count in COUNTS:
            samples: dict[str, list[float]] = {}
            for _ in range(max(3, runs // count)):
                for name, seconds in _round(bare, pooled, resident, machines, raw, count):
                    samples.setdefault(name, []).append(1000 * seconds)
            yield from _rows(count, {name: spread(found) for name, found in samples.items()})


def _round(
    bare: Server,
    pooled: Server,
    resident: Sandbox,
    machines: list[Callable[[], object]],
    raw: list[Place],
    count: int,
) -> Iterator[tuple[str, float]]:
    """Names and seconds; of several at once, until the last of them."""
    yield "run", timed(lambda: _at_once(machines[:count]))
    yield "restore", restored(raw[:count])
    yield "command", timed(lambda: _at_once([lambda: resident.exec("true")] * count))
    yield from _created("bare", bare, count)
    _await_pool(pooled, count)
    yield from _created("pooled", pooled, count)


def _created(name: str, server: Server, count: int) -> Iterator[tuple[str, float]]:
    made: list[Sandbox] = []
    creates: list[float] = []

    def first_command() -> None:
        start = time.perf_counter()
        sandbox = _create(server)
        creates.append(time.perf_counter() - start)
        made.append(sandbox)
        sandbox.exec("true")

    yield f"{name} first", timed(lambda: _at_once([first_command] * count))
    yield f"{name} create", max(creates)
    yield f"{name} kill", timed(lambda: _at_once([one.kill for one in made]))


def _rows(count: int, figures: dict[str, dict[str, float]]) -> Iterator[Row]:
    def row(name: str, key: str, floor: str | None = None, budget: str = "") -> Row:
        beside = figures[floor]["p50"] if floor else None
        name = name if count == 1 else f"{name}, {count} at once"
        return Row("creation", name, figures[key]["p50"], "ms", beside, budget, detail=figures[key])

    yield row("runsc run + command", "run")
    yield row("runsc restore, agent answers", "restore")
    yield row("command in a sandbox that runs", "command")
    yield row("create, no pool", "bare create", "run")
    yield row("create → first command, no pool", "bare first", "run", "≤ 1.3×")
    yield row("create, from the pool", "pooled create")
    yield row("create → first command, from the pool", "pooled first", "command", "≤ floor + 20 ms")
    yield row("kill", "bare kill")


def _create(server: Server) -> Sandbox:
    return Sandbox.create("base", url=server.url, api_key=API_KEY)


def _at_once(actions: Sequence[Callable[[], object]]) -> None:
    with ThreadPoolExecutor(len(actions)) as pool:
        for done in [pool.submit(action) for action in actions]:
            done.result()


def _fill(server: Server, count: int) -> None:
    """Have the pool expect such a burst, by one."""
    while _pooled(server, "wantedCount") < count:
        list(_created("", server, count))
    _await_pool(server, count)


def _await_pool(server: Server, count: int) -> None:
    wait(
        lambda: _pooled(server, "machineCount") >= count,
        f"{count} machines never waited in the pool",
    )


def _pooled(server: Server, figure: str) -> int:
    nodes: Any = server.get("/nodes")
    return sum(share[figure] for node in nodes for share in node["pools"])


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
