"""Pause, and the three resumes, each beside runsc's own checkpoint or restore of the same guest.

hot: thawed in memory; warm: restored from its image; cold cache: the same after the host has
dropped the image's pages. Two servers, one of which keeps no paused sandbox in memory.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from aenv import Sandbox
from aenv.models.folders import Folders
from bench.harness import API_KEY, NO_POOL, Row, Server, live_server, spread, timed, wait
from bench.raw import Image, Place, places


def run(runs: int) -> Iterator[Row]:
    runs = min(runs, 30)
    keep_none = {**NO_POOL, "AENV_HOT_MEMORY_MB": "0"}
    with (
        tempfile.TemporaryDirectory(prefix="aenv-bench-raw-") as base,
        live_server(settings=NO_POOL) as hot,
        live_server(settings=keep_none) as warm,
        _sandbox(hot) as resident,
        _sandbox(warm) as stored,
        places(hot, Image.of(hot, resident, Path(base) / "image"), 1, Path(base) / "raw") as (raw,),
    ):
        samples: dict[str, list[float]] = {}
        for _ in range(runs):
            for name, seconds in _round(raw, resident, warm, stored, Path(base)):
                samples.setdefault(name, []).append(1000 * seconds)
    figures = {name: spread(values) for name, values in samples.items()}

    def row(name: str, key: str, floor: str | None, budget: str = "") -> Row:
        beside = figures[floor]["p50"] if floor else None
        return Row("pauses", name, figures[key]["p50"], "ms", beside, budget, detail=figures[key])

    yield row("raw: freeze, checkpoint by socket", "checkpoint", None)
    yield row("raw: runsc restore, agent answers", "restore", None)
    yield row("raw: the same, image not in page cache", "restore_cold", None)
    yield row("pause, idle", "pause", "checkpoint", "≤ 100 ms")
    yield row("resume, hot", "hot", None, "≤ 10 ms")
    yield row("resume, warm", "warm", "restore", "≤ 1.3×")
    yield row("resume, image not in page cache", "warm_cold", "restore_cold", "≤ 1.3×")


def _round(
    raw: Place, resident: Sandbox, warm: Server, stored: Sandbox, base: Path
) -> Iterator[tuple[str, float]]:
    for kind, drop in (("restore", False), ("restore_cold", True)):
        raw.kill()
        raw.prepare()
        if drop:
            forget(base / "image" / "memory")
        yield kind, timed(raw.restore)
    yield "pause", timed(resident.pause)
    yield "checkpoint", timed(raw.checkpoint)
    yield "hot", timed(lambda: resident.resume(timeout=3600))
    for kind, drop in (("warm", False), ("warm_cold", True)):
        stored.pause()
        await_gone(warm, stored.id)
        if drop:
            forget(warm.data / "snapshots")
        yield kind, timed(lambda: stored.resume(timeout=3600))


def _sandbox(server: Server) -> Sandbox:
    return Sandbox.create("base", url=server.url, api_key=API_KEY, timeout=3600)


def await_gone(server: Server, sandbox_id: str) -> None:
    """Return when the machine of a paused sandbox has been given back."""
    folders = Folders.resolve(server.env)
    machine = folders.instance_run / "gvisor" / "machines" / sandbox_id
    wait(lambda: not machine.exists(), "a paused sandbox stays in memory")


def forget(folder: Path) -> None:
    """Have the host drop from its page cache what lies below ``folder``."""
    for path in (path for path in folder.rglob("*") if path.is_file()):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
            os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(handle)
