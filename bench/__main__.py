"""Run the scenarios, print the table, write the JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench import commands, creation, files, memory, peers, proxy, startup
from bench.harness import Row

SCENARIOS: dict[str, Callable[[int], Iterable[Row]]] = {
    "startup": startup.run,
    "commands": commands.run,
    "creation": creation.run,
    "files": files.run,
    "memory": memory.run,
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
    rows = [
        row
        for name in options.scenario or SCENARIOS
        for row in _announced(name, SCENARIOS[name], options.runs)
    ]
    Console().print(_table(rows))
    _write(options.json, rows)
    return 0


def _announced(name: str, scenario: Callable[[int], Iterable[Row]], runs: int) -> list[Row]:
    print(f"bench: {name} …", file=sys.stderr, flush=True)
    return list(scenario(runs))


def _table(rows: list[Row]) -> Table:
    table = Table("group", "what", "value", "unit", "floor", "ratio", "budget", "p95", "p99")
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


def _write(path: Path, rows: list[Row]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    report = {
        "taken_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "host": {
            "kernel": platform.release(),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "load": os.getloadavg(),
        },
        "rows": [asdict(row) | {"ratio": row.ratio} for row in rows],
    }
    path.write_text(json.dumps(report, indent=2) + "\n")
    print(f"bench: written to {path}", file=sys.stderr)


if __name__ == "__main__":
    raise SystemExit(main())
