"""The proxy beside its floor: requests per second and latency direct to a guest, and through us.

``python -m bench proxy`` measures two guests: a trivial Go server (``bench/upstream``), which makes
the proxy look as bad as it can, and the agent of a real sandbox. Alone, ``python -m bench.proxy
[--seconds 3] [--profile]`` measures the Go server only, and can profile the proxy. The client is
``wrk`` if installed, else a raw asyncio one; client, proxy and guest share the machine's cores.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import pstats
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from bench.harness import Row, free_port

SANDBOX_ID = "ibenchbenchbenchbenc"
HERE = Path(__file__).parent
CONNECTIONS = (1, 8, 32)


@dataclass(frozen=True)
class Endpoint:
    host: str
    port: int
    sandbox_id: str = SANDBOX_ID


@dataclass(frozen=True)
class Load:
    """Requests per second; seconds."""

    rps: float
    p50: float
    p99: float


def run(runs: int) -> Iterator[Row]:
    seconds = max(1, runs / 25)
    with upstream() as guest, proxy(guest) as through:
        yield from compare("trivial server", Endpoint("127.0.0.1", guest), through, seconds)
    yield from run_sandbox(seconds)


def run_sandbox(seconds: float) -> Iterator[Row]:
    from aenv import Sandbox
    from aenv.models.sandboxes import AGENT_PORT
    from bench import agents
    from bench.harness import API_KEY, live_server

    with (
        live_server() as server,
        Sandbox.create("base", url=server.url, api_key=API_KEY) as sandbox,
    ):
        direct = Endpoint(agents.guest_ip(server, sandbox.id), AGENT_PORT, sandbox.id)
        port = int(server.url.rpartition(":")[2])
        through = Endpoint("127.0.0.1", port, sandbox.id)
        yield from compare("agent in a sandbox", direct, through, seconds)


def compare(guest: str, direct: Endpoint, through: Endpoint, seconds: float) -> Iterator[Row]:
    for count in CONNECTIONS:
        load(direct, count, 0.5)
        load(through, count, 0.5)
        floor, ours = load(direct, count, seconds), load(through, count, seconds)
        name = f"{guest}, {count} connections"
        budget = "≥ 0.5" if guest.startswith("agent") else ""
        detail = {"p50": ours.p50 * 1e3, "p99": ours.p99 * 1e3}
        yield Row(
            "proxy", name, ours.rps, "rps", floor.rps, budget, more_is_better=True, detail=detail
        )
        tail = {"direct p99/p50": floor.p99 / floor.p50}
        yield Row(
            "proxy",
            f"{name}: p99 (floor: p50)",
            ours.p99 * 1e3,
            "ms",
            ours.p50 * 1e3,
            "≤ 5",
            detail=tail,
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--profile", action="store_true", help="profile the proxy (slows it)")
    parser.add_argument("--serve", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve, profile=options.profile)
        return
    with upstream() as guest, proxy(guest, profile=options.profile) as through:
        for row in compare(
            "trivial server", Endpoint("127.0.0.1", guest), through, options.seconds
        ):
            print(f"{row.name:45} {row.value:9.2f} {row.unit:3} ratio {row.ratio:5.2f}")


@contextmanager
def upstream() -> Iterator[int]:
    with tempfile.TemporaryDirectory() as folder:
        binary = Path(folder) / "upstream"
        subprocess.run(["go", "build", "-o", binary, "."], cwd=HERE / "upstream", check=True)
        process = subprocess.Popen([binary], stdout=subprocess.PIPE, text=True)
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline())
        finally:
            process.kill()
            process.wait()


@contextmanager
def proxy(guest: int, *, profile: bool = False) -> Iterator[Endpoint]:
    port = free_port()
    arguments = [sys.executable, "-m", "bench.proxy", "--serve", str(port), str(guest)]
    process = subprocess.Popen(arguments + ["--profile"] * profile)
    try:
        await_port(port)
        yield Endpoint("127.0.0.1", port)
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def serve(port: int, guest: int, *, profile: bool) -> None:
    import uvicorn

    from aenv.control.routes import Route, RouteTable
    from aenv.server.proxy import make_protocol

    async def app(scope: object, receive: object, send: object) -> None:
        raise NotImplementedError

    table = RouteTable()
    address = ("127.0.0.1", guest)
    table.publish(Route(SANDBOX_ID, agent=address, guest_host="127.0.0.1", access_token="token"))
    config = uvicorn.Config(
        app, port=port, http=make_protocol(table), loop="uvloop", lifespan="off", log_level="error"
    )
    profiler = cProfile.Profile() if profile else None
    if profiler:
        profiler.enable()
    try:
        uvicorn.Server(config).run()
    except KeyboardInterrupt:
        pass
    finally:
        if profiler:
            profiler.disable()
            pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)


def await_port(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)
        else:
            return


def load(where: Endpoint, connections: int, seconds: float) -> Load:
    if shutil.which("wrk"):
        return wrk(where, connections, seconds)
    import uvloop

    return uvloop.run(raw_load(where, connections, seconds))


def wrk(where: Endpoint, connections: int, seconds: float) -> Load:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency"]
    command += ["-H", f"E2b-Sandbox-Id: {where.sandbox_id}"]
    command.append(f"http://{where.host}:{where.port}/health")
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in out or "Socket errors" in out:
        raise RuntimeError(out)
    rps = float(re.findall(r"Requests/sec:\s+([\d.]+)", out)[0])
    quantiles = dict(re.findall(r"(50|99)%\s+([\d.]+[mu]?s)", out))
    return Load(rps, seconds_of(quantiles["50"]), seconds_of(quantiles["99"]))


def seconds_of(text: str) -> float:
    number, unit = re.findall(r"([\d.]+)([mu]?s)", text)[0]
    return float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit]


async def raw_load(where: Endpoint, connections: int, seconds: float) -> Load:
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    ends = loop.time() + seconds
    clients = [RawClient(where, latencies, ends) for _ in range(connections)]
    for client in clients:
        await loop.create_connection(partial(_same, client), where.host, where.port)
    async with asyncio.timeout(seconds + 10):
        await asyncio.gather(*(client.done for client in clients))
    latencies.sort()
    count = len(latencies)
    p99 = latencies[min(count - 1, count * 99 // 100)]
    return Load(count / seconds, latencies[count // 2], p99)


def _same(client: RawClient) -> RawClient:
    return client


class RawClient(asyncio.Protocol):
    """Sends a request, waits for its answer (204, or "hello"), and so on."""

    def __init__(self, where: Endpoint, latencies: list[float], ends: float) -> None:
        self.request = (
            f"GET /health HTTP/1.1\r\nHost: {where.host}:{where.port}\r\n"
            f"E2b-Sandbox-Id: {where.sandbox_id}\r\n\r\n"
        ).encode()
        self.latencies, self.ends = latencies, ends
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.send()

    def send(self) -> None:
        self.sent = time.monotonic()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if not data.endswith((b"hello", b"\r\n\r\n")) or not data.startswith(b"HTTP/1.1 20"):
            self.done.set_exception(RuntimeError(f"unexpected answer: {data!r}"))
            return
        now = time.monotonic()
        self.latencies.append(now - self.sent)
        if now < self.ends:
            self.send()
        elif not self.done.done():
            self.done.set_result(None)
            self.transport.close()


if __name__ == "__main__":
    main()
