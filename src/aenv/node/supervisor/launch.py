"""Starting the daemon and dialling its socket."""

from __future__ import annotations

import asyncio
import os
import sys
from asyncio import StreamReader, StreamWriter
from pathlib import Path

from aenv.models.errors import HostSetupError

SOCKET = "supervisor.sock"
_START_TIMEOUT = 20.0
_ANSWER_POLL = 0.05
_LINE_LIMIT = 16 << 20
_ALREADY_RUNS = 3
_BOOTSTRAP = (
    "import sys; sys.path.insert(0, sys.argv[1]); "
    "from daemon.main import main; sys.exit(main(sys.argv[2], float(sys.argv[3])))"
)
_KEPT_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "LANG")


async def connect(folder: Path) -> tuple[StreamReader, StreamWriter]:
    """Dial the daemon of ``folder``; ConnectionRefusedError or FileNotFoundError when none runs."""
    path = folder / SOCKET
    if len(os.fsencode(path)) < 100 or sys.platform != "linux":
        return await asyncio.open_unix_connection(str(path), limit=_LINE_LIMIT)
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        short = f"/proc/self/fd/{handle}/{SOCKET}"
        return await asyncio.open_unix_connection(short, limit=_LINE_LIMIT)
    finally:
        os.close(handle)


async def start_or_connect(folder: Path, idle: float) -> tuple[StreamReader, StreamWriter]:
    """Connect to the daemon of ``folder``, starting it if there is none; HostSetupError when it
    will not come up.
    """
    deadline = asyncio.get_running_loop().time() + _START_TIMEOUT
    while True:
        try:
            return await connect(folder)
        except (FileNotFoundError, ConnectionRefusedError):
            started = await _launch(folder, idle)
        except OSError as error:
            raise HostSetupError(f"cannot reach the supervisor of {folder}: {error}") from error
        if started:
            continue
        if asyncio.get_running_loop().time() > deadline:
            raise HostSetupError(
                f"another supervisor holds {folder} but does not answer; see supervisor.log there"
            )
        await asyncio.sleep(_ANSWER_POLL)


async def _launch(folder: Path, idle: float) -> bool:
    """False: another one is coming up or going. Secrets in our environment stay with us."""
    environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-I", "-S", "-c", _BOOTSTRAP, str(Path(__file__).parent), str(folder), str(idle)),
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    try:
        async with asyncio.timeout(_START_TIMEOUT):
            errors = await process.stderr.read(8192)
            code = await process.wait()
    except BaseException:
        if process.returncode is None:
            process.kill()
        raise
    if code not in (0, _ALREADY_RUNS):
        reason = errors.decode(errors="replace").strip().splitlines() or [f"exit code {code}"]
        raise HostSetupError(f"the supervisor of {folder} did not start: {reason[-1]}")
    return code == 0
