"""The same command by others, where installed: ``bwrap``, ``runc run``, SWE-ReX's local runtime.

All on the image of the template ``base``. None of them gives a kernel of its own; they are here to
show what that costs. SWE-ReX, which runs on the host itself, is looked for
in a virtual environment beside those of the published clients (``.venvs/swe-rex``).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

from aenv.models.folders import Folders
from bench.creation import base_image
from bench.harness import Row, interleave, spread

COMMAND = ["/bin/bash", "-l", "-c", "true"]
SWEREX = Path(".venvs/swe-rex/bin/python")
SESSION = """
import asyncio, json, sys, time
from swerex.runtime.abstract import BashAction, CreateBashSessionRequest
from swerex.runtime.local import LocalRuntime

async def main():
    runtime, samples = LocalRuntime(), []
    await runtime.create_session(CreateBashSessionRequest())
    for _ in range(int(sys.argv[1])):
        start = time.perf_counter()
        await runtime.run_in_session(BashAction(command="true"))
        samples.append(time.perf_counter() - start)
    await runtime.close()
    print(json.dumps(samples))

asyncio.run(main())
"""


def run(runs: int) -> Iterator[Row]:
    with base_image(Folders.resolve(os.environ)) as work, ExitStack() as stack:
        root = str(work / "lower")
        actions: dict[str, Callable[[], object]] = {
            "chroot": lambda: _call(["chroot", root, *COMMAND])
        }
        if shutil.which("bwrap"):
            view = ["--ro-bind", root, "/", "--proc", "/proc", "--dev", "/dev"]
            wrap = ["bwrap", *view, "--unshare-pid", "--unshare-net", *COMMAND]
            actions["bwrap"] = lambda: _call(wrap)
        if shutil.which("runc"):
            bundle = stack.enter_context(tempfile.TemporaryDirectory(prefix="aenv-bench-runc-"))
            _write_bundle(Path(bundle), root)
            runc = ["runc", "--root", f"{bundle}/state", "run", "-b", bundle, "aenv-bench"]
            actions["runc"] = lambda: _call(runc)
        samples = interleave(min(runs, 20), **actions)
    floor = spread([1000 * s for s in samples["chroot"]])["p50"]
    for name, values in samples.items():
        figure = spread([1000 * s for s in values])
        yield Row("peers", f"{name}: bash -l -c true", figure["p50"], "ms", floor, detail=figure)
    if SWEREX.exists() and (times := _swerex(min(runs, 20))):
        figure = spread([1000 * s for s in times])
        name = "SWE-ReX local: true in an open session"
        yield Row("peers", name, figure["p50"], "ms", floor, detail=figure)


def _call(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=60)


def _write_bundle(bundle: Path, root: str) -> None:
    subprocess.run(["runc", "spec"], cwd=bundle, check=True)
    config = json.loads((bundle / "config.json").read_text())
    config["root"] = {"path": root, "readonly": True}
    config["process"]["terminal"] = False
    config["process"]["args"] = COMMAND
    mounts = [m for m in config["mounts"] if m["destination"] != "/sys/fs/cgroup"]
    config["mounts"] = mounts  # not there for runc on a host with cgroups of version 1
    (bundle / "config.json").write_text(json.dumps(config))


def _swerex(runs: int) -> list[float]:
    """Empty when its session does not start in its own time, which happens on a busy host."""
    command = [str(SWEREX), "-c", SESSION, str(runs)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    if done.returncode != 0:
        print(f"bench: SWE-ReX failed: {done.stderr.strip()[-200:]}", file=sys.stderr)
        return []
    samples: list[float] = json.loads(done.stdout.splitlines()[-1])
    return samples
