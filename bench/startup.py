"""Server start to ready, ``import aenv``, ``aenv --help``; the floor is the bare interpreter."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

from bench.harness import Row, interleave, live_server, spread


def _python(*arguments: str) -> None:
    subprocess.run([sys.executable, *arguments], check=True, capture_output=True, timeout=60)


def run(runs: int) -> Iterator[Row]:
    samples = interleave(
        min(runs, 20),
        floor=lambda: _python("-c", "pass"),
        imported=lambda: _python("-c", "import aenv"),
        help=lambda: _python("-m", "aenv.cli.main", "--help"),
    )
    figures = {name: spread([1000 * s for s in values]) for name, values in samples.items()}
    floor = figures["floor"]["p50"]
    yield Row("startup", "import aenv", figures["imported"]["p50"], "ms", floor, "≤ 200 ms")
    yield Row("startup", "aenv --help", figures["help"]["p50"], "ms", floor, "≤ 300 ms")
    ready = []
    for _ in range(3):
        with live_server() as server:
            ready.append(1000 * server.ready_seconds)
    figure = spread(ready)
    yield Row("startup", "server to ready", figure["p50"], "ms", floor, "≤ 1500 ms", detail=figure)
