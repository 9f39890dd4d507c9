"""Upload and download of a large file and of small ones, beside the agent dialled directly."""

from __future__ import annotations

import os
from collections.abc import Iterator

from aenv import Sandbox
from bench import agents
from bench.harness import API_KEY, Row, interleave, live_server, spread

SIZE = 64 * 1024 * 1024
MIB = 1024 * 1024


def run(runs: int) -> Iterator[Row]:
    runs = min(runs, 5)
    content = os.urandom(SIZE)
    with (
        live_server() as server,
        Sandbox.create("base", url=server.url, api_key=API_KEY) as sandbox,
    ):
        detail = server.get(f"/sandboxes/{sandbox.id}")
        assert isinstance(detail, dict)
        agent = agents.connect(server, sandbox.id, detail["envdAccessToken"])
        path = "/home/user/large"
        samples = interleave(
            runs,
            up=lambda: sandbox.files.write(path, content),
            direct=lambda: agent.get(f"/files?path={path}&username=user"),
            down=lambda: sandbox.files.read_bytes(path),
        )
        small = interleave(
            50,
            write=lambda: sandbox.files.write("/home/user/small", b"x" * 512),
            read=lambda: sandbox.files.read_bytes("/home/user/small"),
        )
        agent.close()
    rate = {name: SIZE / MIB / spread(values)["p50"] for name, values in samples.items()}
    yield Row(
        "files", "download, direct from the agent", rate["direct"], "MiB/s", more_is_better=True
    )
    yield Row("files", "download, SDK", rate["down"], "MiB/s", rate["direct"], more_is_better=True)
    yield Row("files", "upload, SDK", rate["up"], "MiB/s", more_is_better=True)
    for name, values in small.items():
        figure = spread([1000 * s for s in values])
        yield Row("files", f"{name} 512 bytes, SDK", figure["p50"], "ms", detail=figure)
