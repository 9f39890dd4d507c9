"""How many sandboxes 4 GiB of memory carry: idle, and paused in memory (hot) or on disk (warm).

The server runs in a control group of 4 GiB, which its admission heeds for its sandboxes too. Up to
``--runs`` of them are started; when none is refused by then, the rest is extrapolated, and said so.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aenv import Sandbox
from aenv.models.errors import AenvError
from aenv.node.host.hierarchies import Hierarchies
from bench.harness import API_KEY, Row, Server, live_server
from bench.memory import pss_of, pss_of_sandbox

GIB, MIB = 1 << 30, 1 << 20
GRANTED = 4 * GIB
RESERVE = 512 * MIB
"""What admission keeps back by default; paused sandboxes give way at twice as much."""
LEAST = 8


def run(runs: int) -> Iterator[Row]:
    with granted(GRANTED) as group:
        yield from _running_and_hot(max(LEAST, runs), group)
        yield from _warm(LEAST, group)


def _running_and_hot(runs: int, group: Path | None) -> Iterator[Row]:
    with live_server(group=group, settings=NO_END) as server:
        base = _available(server)
        made, refused = _create(server, runs)
        time.sleep(SETTLE)
        memory = _memory(server)
        each = memory["running"]["usedBytes"] / len(made)
        fallen = (base - _available(server)) / len(made)
        resident = sorted(pss_of_sandbox(one.id) for one in made)[len(made) // 2]
        promised = memory["running"]["promisedBytes"] / memory["running"]["usedBytes"]
        name = f"idle, of {len(made)}"
        yield _each(f"{name}: its control group", each, "≤ 25 MiB")
        yield _each(f"{name}: PSS of its processes", resident)
        yield _each(f"{name}: fall of what is available, shared pages too", fallen)
        yield Row("density", f"{name}: promised ÷ used", promised, "×", more_is_better=True)
        if refused:
            yield _count("idle in 4 GiB, counted", len(made))
        else:
            yield _count("idle in 4 GiB, extrapolated", (base - RESERVE) / fallen)
        for one in made:
            one.pause()
        time.sleep(SETTLE)
        memory = _memory(server)
        hot = memory["hot"]["usedBytes"] / max(1, memory["hot"]["sandboxCount"])
        name = f"paused, hot, of {memory['hot']['sandboxCount']}"
        yield _each(f"{name}: its control group", hot)
        yield _count("paused, hot, in 4 GiB, extrapolated", (base - 2 * RESERVE) / max(hot, fallen))
        kept = memory["hot"]["sandboxCount"]
        yield _count(f"of {len(made)} paused: hot by the default budget, a quarter", kept)
        yield _count(f"of {len(made)} paused: warm", len(made) - kept)


def _warm(count: int, group: Path | None) -> Iterator[Row]:
    """What the server itself keeps of each, and the disk."""
    with live_server(group=group, settings={**NO_END, "AENV_HOT_MEMORY_MB": "0"}) as server:
        made, _ = _create(server, count)
        for one in made[: count // 2]:
            one.pause()
        _until_none_is_hot(server)
        before = pss_of(server.process.pid)
        for one in made[count // 2 :]:
            one.pause()
        _until_none_is_hot(server)
        grown = max(0, pss_of(server.process.pid) - before) / (len(made) - count // 2)
        used = sum(_memory(server)[kind]["usedBytes"] for kind in ("running", "hot"))
        kept = _disk_of_images(server) / len(made)
        yield _each(f"paused, warm, of {len(made)}: control groups", used / len(made))
        yield _each(f"paused, warm, of {len(made)}: growth of the server's PSS", grown)
        yield Row("density", f"paused, warm, of {len(made)}: disk", kept / MIB, "MiB")


SETTLE = 6.0
"""Seconds: longer than the server's samples are apart."""
YOUNG = 35.0
"""Seconds after which nothing is set aside any more for the growth of new sandboxes."""
NO_END = {"AENV_MEMORY_OVERCOMMIT": "1000"}


def _create(server: Server, most: int) -> tuple[list[Sandbox], bool]:
    """What was started, and whether the server refused more."""
    made: list[Sandbox] = []
    refused_at = -1
    while len(made) < most:
        try:
            made.append(Sandbox.create("base", timeout=7200, url=server.url, api_key=API_KEY))
        except AenvError as error:
            if "short of memory" not in str(error):
                raise
            if len(made) == refused_at:
                return made, True
            refused_at = len(made)
            time.sleep(YOUNG)
    return made, False


def _memory(server: Server) -> dict[str, Any]:
    [node] = server.get("/nodes")  # type: ignore[misc,attr-defined]
    return dict(node["memory"])


def _available(server: Server) -> int:
    return int(_memory(server)["availableBytes"])


def _until_none_is_hot(server: Server) -> None:
    deadline = time.monotonic() + 60
    while _memory(server)["hot"]["sandboxCount"]:
        if time.monotonic() > deadline:
            raise TimeoutError("paused sandboxes stay in memory")
        time.sleep(0.2)


def _disk_of_images(server: Server) -> int:
    """Of paused sandboxes: their memory images, as allocated on disk."""
    files = (file for file in (server.data / "snapshots").rglob("*") if file.is_file())
    return sum(file.stat().st_blocks * 512 for file in files)


@contextmanager
def granted(limit: int) -> Iterator[Path | None]:
    """A control group with that limit; None where there can be none."""
    found = Hierarchies.find()
    mount = found.unified or found.v1.get("memory")
    if mount is None:
        yield None
        return
    group = mount / f"aenv-bench-{os.getpid()}"
    group.mkdir()
    try:
        name = "memory.max" if found.unified else "memory.limit_in_bytes"
        (group / name).write_text(str(limit))
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            group.rmdir()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)
        else:
            return


def _each(name: str, value: float, budget: str = "") -> Row:
    return Row("density", name, value / MIB, "MiB", budget=budget)


def _count(name: str, value: float) -> Row:
    return Row("density", name, int(value), "sandboxes", more_is_better=True)
