"""What the scenarios share: a row of the report, a live server of our own, percentiles."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

API_KEY = "bench-key"
NO_POOL = {"AENV_WARM_MAX": "0"}
"""No machines made ahead: they would start beside what is timed."""
_DEADLINE = 120.0


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the report. ``ratio`` = value / floor (floor / value where more is better)."""

    group: str
    name: str
    value: float
    unit: str
    floor: float | None = None
    budget: str = ""
    more_is_better: bool = False
    detail: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        if not self.floor or not self.value:
            return None
        return self.value / self.floor


def percentile(samples: Sequence[float], share: float) -> float:
    """Nearest-rank percentile; ``share`` in 0..1."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(samples: Sequence[float]) -> dict[str, float]:
    return {
        "n": len(samples),
        "min": min(samples),
        "p50": percentile(samples, 0.5),
        "p95": percentile(samples, 0.95),
        "p99": percentile(samples, 0.99),
    }


def timed(action: Callable[[], object]) -> float:
    """Seconds of wall time one call takes."""
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def interleave(runs: int, **actions: Callable[[], object]) -> dict[str, list[float]]:
    """Time each action ``runs`` times in turn, so that a drift of the machine hits all alike."""
    samples: dict[str, list[float]] = {name: [] for name in actions}
    for _ in range(runs):
        for name, action in actions.items():
            samples[name].append(timed(action))
    return samples


def wait(condition: Callable[[], bool], failure: str) -> None:
    """RuntimeError when it does not come true in time."""
    deadline = time.monotonic() + _DEADLINE
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(failure)
        time.sleep(0.005)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True, slots=True)
class Server:
    """A live server with folders of its own; images and runsc come from the host-wide cache."""

    url: str
    data: Path
    env: dict[str, str]
    process: subprocess.Popen[bytes]
    ready_seconds: float

    def get(self, path: str) -> object:
        request = urllib.request.Request(self.url + path, headers={"X-API-Key": API_KEY})
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)


@contextmanager
def live_server(
    *extra: str, group: Path | None = None, settings: Mapping[str, str] | None = None
) -> Iterator[Server]:
    """Start ``aenv server``, yield when /health answers; what it made is gone afterwards.
    ``group``: a control group to run it in; ``settings``: further variables of its environment.
    """
    with tempfile.TemporaryDirectory(prefix="aenv-bench-") as base:
        port = free_port()
        env = os.environ | {
            "AENV_API_KEY": API_KEY,
            "AENV_DATA_DIR": f"{base}/data",
            "AENV_CONFIG_DIR": f"{base}/config",
            **(settings or {}),
        }
        command = [sys.executable, "-m", "aenv.cli.main", "server", "--port", str(port), *extra]
        started = time.perf_counter()
        log = (Path(base) / "server.log").open("wb")
        if group is not None:
            join = f'echo $$ > {group}/cgroup.procs && exec "$@"'
            command = ["/bin/sh", "-c", join, "sh", *command]
        process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
        url = f"http://127.0.0.1:{port}"
        try:
            _await_health(url, process, Path(base) / "server.log")
            ready = time.perf_counter() - started
            yield Server(url, Path(base) / "data", env, process, ready)
        finally:
            down = [sys.executable, "-m", "aenv.cli.main", "down", "--kill", "--url", url]
            subprocess.run(down, env=env, check=False, capture_output=True, timeout=120)
            if process.poll() is None:
                process.terminate()
            process.wait(timeout=60)


def _await_health(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended with {process.returncode}:\n{log.read_text()}")
        try:
            with urllib.request.urlopen(url + "/health", timeout=1):
                return
        except OSError:
            time.sleep(0.01)
    raise RuntimeError("the server was not ready within 60 s")
