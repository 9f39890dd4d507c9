"""The proxy beside its floor: requests per second and latency direct to a guest server, and through
us.

python bench/proxy.py [--seconds 3] [--json FILE] [--profile]

The floor is a trivial Go server (``bench/upstream``), measured in the same run by the same client:
``wrk`` if it is installed, else a raw asyncio client. Client, proxy and server share the machine's
cores.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import pstats
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

SANDBOX_ID = "ibenchbenchbenchbenc"
HERE = Path(__file__).parent
CONNECTIONS = (1, 8, 32)


@dataclass(frozen=True)
class Sample:
    path: str
    connections: int
    rps: float
    p50_ms: float
    p99_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--profile", action="store_true", help="profile the proxy (slows it)")
    parser.add_argument("--serve", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve, profile=options.profile)
        return
    samples = measure(options.seconds, profile=options.profile)
    print(table(samples))
    if options.json:
        options.json.write_text(json.dumps([asdict(sample) for sample in samples], indent=2))


def measure(seconds: float, *, profile: bool) -> list[Sample]:
    samples = []
    with upstream() as direct, proxy(direct, profile=profile) as through:
        for connections in CONNECTIONS:
            for path, port in (("direct", direct), ("proxy", through)):
                load(port, connections, 0.5)
                rps, p50, p99 = load(port, connections, seconds)
                samples.append(Sample(path, connections, rps, p50 * 1e3, p99 * 1e3))
    return samples


def table(samples: list[Sample]) -> str:
    lines = ["conns    path       rps   p50 ms   p99 ms   ratio  p99/p50"]
    for sample in samples:
        floor = next(s for s in samples if s.connections == sample.connections)
        lines.append(
            f"{sample.connections:5d} {sample.path:>7} {sample.rps:9.0f} {sample.p50_ms:8.3f} "
            f"{sample.p99_ms:8.3f} {sample.rps / floor.rps:7.1%} "
            f"{sample.p99_ms / sample.p50_ms:8.1f}"
        )
    return "\n".join(lines)


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
def proxy(guest: int, *, profile: bool) -> Iterator[int]:
    port = free_port()
    arguments = [sys.executable, __file__, "--serve", str(port), str(guest)]
    process = subprocess.Popen(arguments + ["--profile"] * profile)
    try:
        await_port(port)
        yield port
    finally:
        process.terminate()
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
    finally:
        if profiler:
            profiler.disable()
            pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(25)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
        return port


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


def load(port: int, connections: int, seconds: float) -> tuple[float, float, float]:
    """Requests per second, and the median and 99th percentile in seconds."""
    if shutil.which("wrk"):
        return wrk(port, connections, seconds)
    import uvloop

    return uvloop.run(raw_load(port, connections, seconds))


def wrk(port: int, connections: int, seconds: float) -> tuple[float, float, float]:
    command = ["wrk", "-t1", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--latency"]
    command += ["-H", f"E2b-Sandbox-Id: {SANDBOX_ID}", f"http://127.0.0.1:{port}/health"]
    out = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    if "Non-2xx" in out or "Socket errors" in out:
        raise RuntimeError(out)
    rps = float(re.search(r"Requests/sec:\s+([\d.]+)", out)[1])
    quantiles = dict(re.findall(r"(50|99)%\s+([\d.]+[mu]?s)", out))
    return rps, seconds_of(quantiles["50"]), seconds_of(quantiles["99"])


def seconds_of(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)([mu]?s)", text).groups()
    return float(number) * {"us": 1e-6, "ms": 1e-3, "s": 1}[unit]


async def raw_load(port: int, connections: int, seconds: float) -> tuple[float, float, float]:
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    ends = loop.time() + seconds
    clients = [RawClient(port, latencies, ends) for _ in range(connections)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", port)
    async with asyncio.timeout(seconds + 10):
        await asyncio.gather(*(client.done for client in clients))
    latencies.sort()
    count = len(latencies)
    return count / seconds, latencies[count // 2], latencies[min(count - 1, count * 99 // 100)]


class RawClient(asyncio.Protocol):
    """Sends a request, waits for an answer of a known size, and so on."""

    def __init__(self, port: int, latencies: list[float], ends: float) -> None:
        self.request = (
            f"GET /health HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n"
            f"E2b-Sandbox-Id: {SANDBOX_ID}\r\n\r\n"
        ).encode()
        self.latencies, self.ends = latencies, ends
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.send()

    def send(self) -> None:
        self.sent = time.monotonic()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        if not data.endswith(b"hello"):
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
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    main()
