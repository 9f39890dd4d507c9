"""Sealing in a process of its own, which gives way to everybody else and ends with its server.

python -m aenv.node.cold UPPER TARGET
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import resource
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from aenv.models.errors import AenvError, DiskFullError, EngineError
from aenv.node.cold.sealing import Sealed, seal

TIMEOUT = 3600.0
_NICEST = 19
_PR_SET_PDEATHSIG = 1


async def run(upper: Path, target: Path) -> Sealed:
    """As :func:`seal`, in a process that is gone when this returns or is called off."""
    worker = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "aenv.node.cold",
        str(upper),
        str(target),
        stdin=DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        env=_environment(),
    )
    try:
        async with asyncio.timeout(TIMEOUT):
            told, complaint = await worker.communicate()
    except TimeoutError as error:
        raise EngineError(f"the disk was not sealed within {TIMEOUT:g} s") from error
    finally:
        if worker.returncode is None:
            with suppress(ProcessLookupError):
                worker.kill()
            await worker.wait()
    return _outcome(told, complaint)


def main(upper: str, target: str) -> None:
    _give_way()
    try:
        outcome: dict[str, object] = asdict(seal(Path(upper), Path(target)))
    except AenvError as error:
        full = isinstance(error, DiskFullError)
        outcome = {"full": full, "failure": error.message}
    except OSError as error:
        outcome = {"full": False, "failure": f"the disk cannot be read: {error}"}
    sys.stdout.write(json.dumps(outcome))


def _outcome(told: bytes, complaint: bytes) -> Sealed:
    try:
        found = json.loads(told)
    except ValueError as error:
        words = complaint.decode(errors="replace").strip()[-500:]
        raise EngineError(f"the disk was not sealed: {words or 'its worker was killed'}") from error
    if "failure" in found:
        raise (DiskFullError if found["full"] else EngineError)(found["failure"])
    return Sealed(**found)


def _environment() -> dict[str, str]:
    """With this very copy of the package."""
    source, inherited = str(Path(__file__).parents[3]), os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": f"{source}:{inherited}" if inherited else source}


def _give_way() -> None:
    """Last in line for the processor, with a descriptor for every folder of a deep tree."""
    os.nice(_NICEST)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
