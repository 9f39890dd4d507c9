"""Copy files and trees between this machine and a sandbox.

Through ``tar`` in the guest, which keeps modes, mtimes and symlinks; through the file API where the
guest has no tar. A single file has another name until it is whole.
"""

from __future__ import annotations

import asyncio
import io
import os
import posixpath
import secrets
import tarfile
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path

from aenv.models.errors import (
    AenvError,
    CommandNotFoundError,
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
staged=$1 place=$2
shift 2
tar "$@" || exit
test -z "$staged" || exec mv -f -- "$staged" "$place"
"""
"""Arguments: what to rename, when tar has done its work, and to what; then tar's. GNU tar reads and
writes 10 KiB at a time unless told otherwise; others ignore the variable.
"""
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
    """As ``cp -r``: into ``destination`` when that is a directory, else as ``destination``; folders
    on the way to it are made.
    """
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
    """Of a tree, what fits stays, as of ``cp -r``."""
    place = posixpath.join(folder, name)
    if await asyncio.to_thread(source.is_dir):
        await _unpacked(agent, source, (folder, name), ("", ""), user, progress)
        return
    told = progress and (lambda _, count: progress(name, count))
    interim = posixpath.join(posixpath.dirname(name), f".aenv-{secrets.token_hex(8)}")
    staged = posixpath.join(folder, interim)
    try:
        await _unpacked(agent, source, (folder, interim), (staged, place), user, told)
    except _TarMissingError:
        raise
    except BaseException:
        with suppress(AenvError):
            await agent.rpc("filesystem.Filesystem/Remove", {"path": staged}, user=user)
        raise


async def _unpacked(
    agent: Agent,
    source: Path,
    target: tuple[str, str],
    renamed: tuple[str, str],
    user: str | None,
    progress: Progress | None,
) -> None:
    """``target``: a folder, and the name in it; ``renamed``: what from, and to, in the end."""
    folder, name = target
    launch = Launch([*_TAR, *renamed, "-xpof", "-", "-C", folder], user=user, stdin=True)
    process = await _started(agent, launch)
    processes.in_background(process)
    async with _released(process):
        try:
            failure = await _packed_into(agent, process, source, name, progress)
            if failure is not None and await process.kill():
                raise failure
            result = await process.wait()  # tar may have ended without reading everything
        except asyncio.CancelledError:
            with suppress(AenvError):
                await process.kill()
            raise
    to = renamed[1] or posixpath.join(folder, name)
    _check(result.exit_code, result.stderr_bytes, f"copy {source} to {to}")


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
    argv = [*_TAR, "", "", "-cf", "-", "-C", folder, "--", copy.root]
    process = await _started(agent, Launch(argv, user=user, quiet=True))
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
    """The folder to unpack in, absolute, and the name there: with the folders that are missing, for
    the user to make, not the agent.
    """
    known, missing = destination.rstrip("/") or "/", ""
    while True:
        try:
            entry = await stat(agent, known or ".", user)
        except NotFoundError:
            known, name = posixpath.split(known)
            missing = posixpath.join(name, missing)
            continue
        if not missing:
            return (entry.path, own_name) if entry.is_dir else posixpath.split(entry.path)
        if destination.endswith("/"):
            missing = posixpath.join(missing, own_name)
        return entry.path, posixpath.normpath(missing)


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
    if not path.parent.is_dir():
        raise NotFoundError(f"there is no folder {path.parent} to copy into")
    if str(destination).endswith("/"):
        path.mkdir()
        return path, own_name
    return path.parent, path.name


def _base_name(path: str) -> str:
    name = posixpath.basename(path.rstrip("/"))
    if name in ("", ".", ".."):
        raise InvalidRequestError(f"{path} cannot be copied as a whole; name a folder in it")
    return name
