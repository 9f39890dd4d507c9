"""The stall that a live snapshot costs: the longest gap a client sees that asks each millisecond.

It asks the agent through the proxy, on one connection. The floor is the time in which runsc freezes
the same guest, writes its memory and lets it go on. Files are in the guest's root, so they are not
in its memory; "clean" is a second snapshot after that of what was just written.
"""

from __future__ import annotations

import http.client
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from aenv import Sandbox, Snapshot
from aenv.models.sandboxes import AGENT_PORT
from bench.harness import API_KEY, NO_POOL, Row, Server, live_server, spread, timed
from bench.raw import Image, Place, places

WRITE = (
    "mkdir -p /root/many && cd /root/many && for i in $(seq 10000); do echo $i$RANDOM > $i; done"
    " && head -c 200M /dev/urandom > /root/large"
)
HOLD = "import os,time; held=os.urandom(200<<20); print('held', flush=True); time.sleep(1e6)"
_SETTLED = 0.3
_BUDGET = "≤ 150 ms"


def run(runs: int) -> Iterator[Row]:
    runs = min(runs, 20)
    with live_server(settings=NO_POOL) as server:
        yield from _idle(server, runs)
        yield from _files(server, max(3, runs // 3))
        yield from _memory(server, max(3, runs // 3))


def _idle(server: Server, runs: int) -> Iterator[Row]:
    with _sandbox(server) as sandbox, _raw(server, sandbox) as raw:
        samples = [_sample(server, sandbox, raw) for _ in range(runs)]
    yield from _rows("idle", samples)


def _files(server: Server, runs: int) -> Iterator[Row]:
    written, clean = [], []
    with _sandbox(server) as sandbox, ExitStack() as stack:
        sandbox.exec(["/bin/bash", "-c", WRITE], timeout=300)
        raw = stack.enter_context(_raw(server, sandbox))  # it knows of as many files
        for _ in range(runs):
            sandbox.exec(["/bin/bash", "-c", WRITE], timeout=300)
            written.append(_sample(server, sandbox, raw))
            clean.append(_sample(server, sandbox, raw))
    yield from _rows("10k files + 200 MB just written", written)
    yield from _rows("10k files + 200 MB, clean", clean)


def _memory(server: Server, runs: int) -> Iterator[Row]:
    with _sandbox(server) as sandbox:
        sandbox.exec(["/bin/bash", "-c", f'setsid python3 -c "{HOLD}" > /tmp/held 2>&1 &'])
        while "held" not in sandbox.exec(["/bin/cat", "/tmp/held"]).stdout:
            time.sleep(0.1)
        with _raw(server, sandbox) as raw:
            samples = [_sample(server, sandbox, raw) for _ in range(runs)]
    yield from _rows("200 MB of guest memory", samples)


def _rows(case: str, samples: list[tuple[float, float, float]]) -> Iterator[Row]:
    floor, stall, whole = (
        spread([1000 * s for s in column]) for column in zip(*samples, strict=True)
    )
    yield Row(
        "snapshots", f"stall, {case}", stall["p50"], "ms", floor["p50"], _BUDGET, False, stall
    )
    yield Row("snapshots", f"whole call, {case}", whole["p50"], "ms", detail=whole)


def _sample(server: Server, sandbox: Sandbox, raw: Place) -> tuple[float, float, float]:
    """Seconds: the floor, the stall, the whole call."""
    floor = timed(lambda: raw.checkpoint(thaw=True))
    with Poller(server, sandbox) as poller:
        time.sleep(_SETTLED)
        poller.reset()
        start = time.perf_counter()
        kept = sandbox.snapshot()
        whole = time.perf_counter() - start
        time.sleep(_SETTLED)
    Snapshot.delete(kept.id, url=server.url, api_key=API_KEY)
    return floor, poller.longest, whole


class Poller:
    """Asks for the agent's health each millisecond; ``longest``: seconds between two answers."""

    def __init__(self, server: Server, sandbox: Sandbox) -> None:
        self._address = server.url.removeprefix("http://")
        self._headers = {**sandbox.traffic_headers, "e2b-sandbox-port": str(AGENT_PORT)}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._poll)
        self._failure: Exception | None = None
        self.longest = 0.0

    def __enter__(self) -> Poller:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def reset(self) -> None:
        self.longest = 0.0

    def _poll(self) -> None:
        try:
            connection = http.client.HTTPConnection(self._address, timeout=60)
            last = time.perf_counter()
            while not self._stopped.is_set():
                connection.request("GET", "/health", headers=self._headers)
                reply = connection.getresponse()
                reply.read()
                if reply.status >= 300:
                    raise RuntimeError(f"the agent's health through the proxy: {reply.status}")
                now = time.perf_counter()
                self.longest, last = max(self.longest, now - last), now
                time.sleep(0.001)
        except Exception as error:  # noqa: BLE001 - raised to whoever waits for the thread
            self._failure = error


def _sandbox(server: Server) -> Sandbox:
    return Sandbox.create("base", url=server.url, api_key=API_KEY, timeout=3600)


@contextmanager
def _raw(server: Server, sandbox: Sandbox) -> Iterator[Place]:
    """A machine of runsc's alone that goes on from the sandbox as it is now."""
    with tempfile.TemporaryDirectory(prefix="aenv-bench-raw-") as base:
        image = Image.of(server, sandbox, Path(base) / "image")
        with places(server, image, 1, Path(base) / "places") as (raw,):
            raw.prepare()
            raw.restore()
            yield raw
