"""The same command by others, where installed: ``bwrap``, ``runc run``, SWE-ReX's local runtime.

None of them gives a kernel of its own; they are here to show what that costs.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

from bench.harness import Row, interleave, spread

COMMAND = ["/bin/bash", "-l", "-c", "true"]


def run(runs: int) -> Iterator[Row]:
    with ExitStack() as stack:
        actions: dict[str, Callable[[], object]] = {"plain": lambda: _call(COMMAND)}
        if shutil.which("bwrap"):
            wrap = ["bwrap", "--dev-bind", "/", "/", "--unshare-pid", "--unshare-net", *COMMAND]
            actions["bwrap"] = lambda: _call(wrap)
        if shutil.which("runc"):
            bundle = stack.enter_context(tempfile.TemporaryDirectory(prefix="aenv-bench-runc-"))
            _write_bundle(Path(bundle))
            runc = ["runc", "--root", f"{bundle}/state", "run", "-b", bundle, "aenv-bench"]
            actions["runc"] = lambda: _call(runc)
        samples = interleave(min(runs, 20), **actions)
    floor = spread([1000 * s for s in samples["plain"]])["p50"]
    for name, values in samples.items():
        figure = spread([1000 * s for s in values])
        yield Row("peers", f"{name}: bash -l -c true", figure["p50"], "ms", floor, detail=figure)
    if find_spec("swerex"):
        figure = spread([1000 * s for s in asyncio.run(_swerex(runs))])
        yield Row(
            "peers", "SWE-ReX local: session command", figure["p50"], "ms", floor, detail=figure
        )


def _call(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _write_bundle(bundle: Path) -> None:
    subprocess.run(["runc", "spec"], cwd=bundle, check=True)
    config = json.loads((bundle / "config.json").read_text())
    config["root"] = {"path": "/", "readonly": True}
    config["process"]["terminal"] = False
    config["process"]["args"] = COMMAND
    config["process"].pop("oomScoreAdj", None)
    (bundle / "config.json").write_text(json.dumps(config))


async def _swerex(runs: int) -> list[float]:
    """Imported here: an optional peer (``pip install swe-rex``)."""
    import time

    from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
    from swerex.runtime.local import LocalRuntime

    runtime = LocalRuntime()
    await runtime.create_session(CreateBashSessionRequest())
    samples = []
    for _ in range(runs):
        start = time.perf_counter()
        await runtime.run_in_session(BashAction(command="true"))
        samples.append(time.perf_counter() - start)
    await runtime.close()
    return samples
