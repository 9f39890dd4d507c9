"""Run the scenarios, print the table, write the JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import (
    commands,
    creation,
    density,
    files,
    forks,
    memory,
    pauses,
    peers,
    proxy,
    snapshots,
    startup,
)
from bench.harness import Row

WIDTH = 132
SCENARIOS: dict[str, Callable[[int], Iterable[Row]]] = {
    "startup": startup.run,
    "commands": commands.run,
    "creation": creation.run,
    "files": files.run,
    "memory": memory.run,
    "density": density.run,
    "pauses": pauses.run,
    "snapshots": snapshots.run,
    "forks": forks.run,
    "proxy": proxy.run,
    "peers": peers.run,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "scenario", nargs="*", help=f"any of: {', '.join(SCENARIOS)}; all when none"
    )
    parser.add_argument("--runs", type=int, default=50, help="samples per figure (default 50)")
    parser.add_argument("--json", type=Path, default=Path("bench/results/latest.json"))
    options = parser.parse_args()
    unknown = set(options.scenario) - set(SCENARIOS)
    if unknown:
        parser.error(f"unknown scenario: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    loads, failed = [os.getloadavg()[0]], []
    for name in options.scenario or SCENARIOS:
        print(f"bench: {name} …", file=sys.stderr, flush=True)
        try:
            rows += SCENARIOS[name](options.runs)
        except Exception:  # noqa: BLE001 - the others still count
            traceback.print_exc()
            failed.append(name)
        loads.append(os.getloadavg()[0])
    Console(width=None if sys.stdout.isatty() else WIDTH).print(_table(rows))
    _write(options.json, rows, loads)
    if failed:
        print(f"bench: failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _table(rows: list[Row]) -> Table:
    table = Table("group", "what", "value", "unit", "floor", "ratio", "budget", "p95", "p99")
    table.columns[1].min_width = 40
    for row in rows:
        table.add_row(
            row.group,
            row.name,
            f"{row.value:.2f}",
            row.unit,
            "" if row.floor is None else f"{row.floor:.2f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            row.budget,
            *(f"{row.detail[p]:.2f}" if p in row.detail else "" for p in ("p95", "p99")),
        )
    return table


def _write(path: Path, rows: list[Row], loads: list[float]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": {
            "kernel": platform.release(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "load": {"min": min(loads), "max": max(loads)},
        },
        "rows": [asdict(row) | {"ratio": row.ratio} for row in rows],
    }
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"bench: written to {path}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
