"""Copy files and trees between this machine and a sandbox.

Through ``tar`` in the guest, which keeps modes, mtimes and symlinks; through the file API where the
guest has no tar.
"""

from __future__ import annotations

import asyncio
import io
import os
import posixpath
import tarfile
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

from aenv.models.errors import (
    AenvError,
    CommandNotFoundError,
    ConflictError,
    DiskFullError,
    InvalidRequestError,
    NotFoundError,
    PolicyError,
)
from aenv.sdk import plain_trees, processes
from aenv.sdk.archives import Extraction, Progress, pack
from aenv.sdk.bridges import Pipe, Pulled, in_thread
from aenv.sdk.client import Agent
from aenv.sdk.events import Exited, Output
from aenv.sdk.launches import Launch
from aenv.sdk.processes import STDIN_CHUNK, AsyncProcess
from aenv.sdk.results import EntryInfo

_NO_TAR = 127
_SCRIPT = """\
command -v tar >/dev/null 2>&1 || exit 127
export TAR_OPTIONS=-b512
exec tar "$@"
"""
"""GNU tar reads and writes 10 KiB at a time unless told otherwise; others ignore the variable."""
_TAR = ("/bin/sh", "-c", _SCRIPT, "tar")
_FULL = ("No space left", "quota exceeded", ": Wrote only ")
"""A full disk in tar's words; the last for the write that met its end."""
_STDERR_KEPT = 8192


async def upload(
    agent: Agent,
    source: Path,
    destination: str,
    *,
    user: str | None = None,
    progress: Progress | None = None,
) -> None:
    """As ``cp -r``: into ``destination`` when that is a directory, else as ``destination``."""
    real, own_name = await asyncio.to_thread(_local_source, source)
    folder, name = await _remote_place(agent, own_name, destination, user)
    try:
        await _tar_in(agent, real, folder, name, user, progress)
    except _TarMissingError:
        await plain_trees.upload(agent, real, posixpath.join(folder, name), user, progress)


async def download(
    agent: Agent,
    source: str,
    destination: str | Path,
    *,
    user: str | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """As ``cp -r``. Returns what was left out for safety: special files, symlinks that point
    outside.

    HostileArchiveError when the sandbox tried to write outside of the copy.
    """
    entry = await stat(agent, source, user)
    origin = entry.symlink_target or entry.path
    place = await asyncio.to_thread(_local_place, _base_name(entry.path), destination)
    copy = Extraction(place[0], root=_base_name(origin), name=place[1], progress=progress)
    try:
        await _tar_out(agent, posixpath.dirname(origin) or "/", copy, user)
    except _TarMissingError:
        await plain_trees.download(agent, origin, copy, user)
    return copy.skipped


async def stat(agent: Agent, path: str, user: str | None) -> EntryInfo:
    reply = await agent.rpc("filesystem.Filesystem/Stat", {"path": path}, user=user)
    return EntryInfo.from_wire(reply["entry"])


class _TarMissingError(PolicyError):
    """The guest has no tar."""


async def _tar_in(
    agent: Agent, source: Path, folder: str, name: str, user: str | None, progress: Progress | None
) -> None:
    launch = Launch([*_TAR, "-xpof", "-", "-C", folder], user=user, stdin=True)
    process = await _started(agent, launch)
    processes.in_background(process)
    async with _released(process):
        failure = await _packed_into(agent, process, source, name, progress)
        if failure is not None and await process.kill():
            raise failure
        result = await process.wait()  # tar may have ended without reading everything
    try:
        _check(result.exit_code, result.stderr_bytes, f"copy {source} to {folder}/{name}")
    except DiskFullError:
        if await asyncio.to_thread(source.is_file):  # of a tree, what fits stays, as of cp -r
            with suppress(AenvError):
                path = posixpath.join(folder, name)
                await agent.rpc("filesystem.Filesystem/Remove", {"path": path}, user=user)
        raise


async def _packed_into(
    agent: Agent, process: AsyncProcess, source: Path, name: str, progress: Progress | None
) -> AenvError | None:
    """Why the process did not take all of it, or None. What fails on this side is raised."""
    pipe = Pipe()
    feeding = asyncio.create_task(processes.feed(agent, process.pid, pipe.pieces()))
    feeding.add_done_callback(lambda _: pipe.close())
    try:
        with suppress(BrokenPipeError):
            await in_thread(lambda: pack(source, name, pipe, progress), abort=process.kill)
            await pipe.end()
        await feeding
        await process.close_stdin()
    except AenvError as error:
        return error
    finally:
        feeding.cancel()
        await asyncio.gather(feeding, return_exceptions=True)
    return None


async def _tar_out(agent: Agent, folder: str, copy: Extraction, user: str | None) -> None:
    process = await _started(
        agent, Launch([*_TAR, "-cf", "-", "-C", folder, "--", copy.root], user=user, quiet=True)
    )
    events = process.events()
    stderr = bytearray()
    code: int | None = None

    async def pull() -> bytes:
        nonlocal code
        async for event in events:
            if isinstance(event, Exited):
                code = event.exit_code
            elif isinstance(event, Output) and event.stream == "stdout":
                return event.data
            elif isinstance(event, Output) and len(stderr) < _STDERR_KEPT:
                stderr.extend(event.data)
        return b""

    stream = io.BufferedReader(Pulled(pull), STDIN_CHUNK)
    what = f"copy {folder}/{copy.root}"
    damage: Exception | None = None
    async with _released(process), aclosing(events):
        try:
            await in_thread(lambda: copy.unpack(stream), abort=process.kill)
        except tarfile.TarError as error:
            damage = error
        while await pull():
            pass
    _check(code, bytes(stderr), what)
    if damage is not None:
        raise PolicyError(f"the sandbox sent a damaged archive: {damage}") from damage


@asynccontextmanager
async def _released(process: AsyncProcess) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await process.disconnect()


async def _started(agent: Agent, launch: Launch) -> AsyncProcess:
    try:
        return await processes.start(agent, launch)
    except CommandNotFoundError as error:  # the shell that looks for it
        raise _TarMissingError(str(error)) from error


def _check(code: int | None, stderr: bytes, what: str) -> None:
    if code == 0:
        return
    if code == _NO_TAR:
        raise _TarMissingError("the sandbox has no tar")
    said = stderr.decode("utf-8", "replace").strip()
    if any(words in said for words in _FULL):
        raise DiskFullError(f"cannot {what}: the sandbox's disk is full")
    raise InvalidRequestError(
        f"cannot {what}: tar ended with status {code}: {said or 'no message'}"
    )


async def _remote_place(
    agent: Agent, own_name: str, destination: str, user: str | None
) -> tuple[str, str]:
    """The absolute folder to unpack in, and the top-level name there."""
    try:
        entry = await stat(agent, destination, user)
    except NotFoundError:
        if destination.endswith("/"):
            return await _made(agent, destination, user), own_name
        folder, name = posixpath.split(destination)
        return await _made(agent, folder or ".", user), name
    if entry.is_dir:
        return entry.path, own_name
    return posixpath.split(entry.path)


async def _made(agent: Agent, folder: str, user: str | None) -> str:
    with suppress(ConflictError):
        await agent.rpc("filesystem.Filesystem/MakeDir", {"path": folder}, user=user)
    return (await stat(agent, folder, user)).path


def _local_source(source: Path) -> tuple[Path, str]:
    """The file behind a top-level symlink, and the name it goes by."""
    if not source.exists():
        raise NotFoundError(f"{source} does not exist")
    name = Path(os.path.abspath(source)).name
    if not name:
        raise InvalidRequestError(f"{source} cannot be copied as a whole; name a folder in it")
    return source.resolve(), name


def _local_place(own_name: str, destination: str | Path) -> tuple[Path, str]:
    path = Path(destination)
    if path.is_dir():
        return path, own_name
    if str(destination).endswith("/"):
        path.mkdir(parents=True)
        return path, own_name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.parent, path.name


def _base_name(path: str) -> str:
    name = posixpath.basename(path.rstrip("/"))
    if name in ("", ".", ".."):
        raise InvalidRequestError(f"{path} cannot be copied as a whole; name a folder in it")
    return name
