"""Forks of an idle sandbox, beside as many raw restores of its image at the same time."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from aenv import Sandbox
from bench.harness import API_KEY, NO_POOL, Row, live_server, spread, timed
from bench.raw import Image, places, restored

COUNTS = (1, 8, 16)


def run(runs: int) -> Iterator[Row]:
    runs = max(3, min(runs, 30) // 3)
    with (
        tempfile.TemporaryDirectory(prefix="aenv-bench-raw-") as base,
        live_server(settings=NO_POOL) as server,
        Sandbox.create("base", url=server.url, api_key=API_KEY, timeout=3600) as sandbox,
        places(
            server, Image.of(server, sandbox, Path(base) / "image"), max(COUNTS), Path(base) / "raw"
        ) as raw,
    ):
        for count in COUNTS:
            floors, ours = [], []
            for _ in range(runs):
                floors.append(1000 * restored(raw[:count]))
                ours.append(1000 * _forked(sandbox, count))
            floor = spread(floors)
            budget = "≤ 1.2×" if count == 8 else ""
            name = f"{count} raw restores at once"
            yield Row("forks", name, floor["p50"], "ms", detail=floor)
            detail = spread(ours)
            yield Row(
                "forks",
                f"fork({count}), idle",
                detail["p50"],
                "ms",
                floor["p50"],
                budget,
                False,
                detail,
            )


def _forked(sandbox: Sandbox, count: int) -> float:
    made: list[Sandbox] = []
    seconds = timed(lambda: made.extend(sandbox.fork(count, timeout=600)))
    for one in made:
        one.kill()
    return seconds
