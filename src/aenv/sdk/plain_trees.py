"""Trees through the file API alone, for guests without tar. Modes and mtimes are lost on upload."""

from __future__ import annotations

import asyncio
import os
import posixpath
import secrets
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from aenv.models.errors import ConflictError
from aenv.sdk.archives import Extraction, Progress
from aenv.sdk.client import Agent
from aenv.sdk.results import EntryInfo

_CHUNK = 256 << 10


async def upload(
    agent: Agent, source: Path, destination: str, user: str | None, progress: Progress | None
) -> None:
    """``source`` becomes ``destination``."""
    for path in await asyncio.to_thread(lambda: list(_walk(source))):
        inner = path.relative_to(source).as_posix()
        target = destination if inner == "." else posixpath.join(destination, inner)
        if path.is_dir():
            with suppress(ConflictError):
                await agent.rpc("filesystem.Filesystem/MakeDir", {"path": target}, user=user)
        else:
            with path.open("rb") as file:
                await _write(agent, target, file, user)
            if progress:
                progress(inner, path.stat().st_size)


async def download(agent: Agent, source: str, copy: Extraction, user: str | None) -> None:
    reply = await agent.rpc("filesystem.Filesystem/Stat", {"path": source}, user=user)
    await _fetch(agent, EntryInfo.from_wire(reply["entry"]), copy.root, copy, user)
    await asyncio.to_thread(copy.finish)


async def _fetch(
    agent: Agent, entry: EntryInfo, name: str, copy: Extraction, user: str | None
) -> None:
    mtime = entry.modified_at.timestamp() if entry.modified_at else 0.0
    if entry.symlink_target is not None:
        copy.skipped.append(f"{name} (a symlink; the sandbox has no tar)")
    elif entry.is_dir:
        await asyncio.to_thread(copy.add_folder, name, entry.mode, mtime)
        message = {"path": entry.path, "depth": 1}
        reply = await agent.rpc("filesystem.Filesystem/ListDir", message, user=user)
        for inner in map(EntryInfo.from_wire, reply.get("entries", ())):
            await _fetch(agent, inner, f"{name}/{inner.name}", copy, user)
    elif entry.type == "file":
        with tempfile.TemporaryFile() as spool:
            await _read(agent, entry.path, spool, user)
            await asyncio.to_thread(copy.add_file, name, spool, entry.mode, mtime)
    else:
        copy.skipped.append(f"{name} (device, pipe or socket)")


async def _read(agent: Agent, path: str, spool: IO[bytes], user: str | None) -> None:
    async with agent.download("/files", params=_query(path, user)) as answer:
        async for chunk in answer.aiter_bytes(_CHUNK):
            await asyncio.to_thread(spool.write, chunk)
    spool.seek(0)


async def _write(agent: Agent, path: str, file: IO[bytes], user: str | None) -> None:
    """Under another name until it is whole: the agent removes what was cut off."""
    staged = posixpath.join(posixpath.dirname(path), f".aenv-{secrets.token_hex(8)}")

    async def pieces() -> AsyncIterator[bytes]:
        while piece := await asyncio.to_thread(file.read, _CHUNK):
            yield piece

    await agent.request(
        "POST",
        "/files",
        params=_query(staged, user),
        headers={"content-type": "application/octet-stream"},
        content=pieces(),
    )
    move = {"source": staged, "destination": path}
    await agent.rpc("filesystem.Filesystem/Move", move, user=user)


def _query(path: str, user: str | None) -> dict[str, str]:
    return {"path": path, "username": user} if user else {"path": path}


def _walk(source: Path) -> Iterator[Path]:
    """Folders before what they hold; symlinks are followed to files only."""
    yield source
    if source.is_dir():
        for folder, folders, files in os.walk(source):
            for name in (*sorted(folders), *sorted(files)):
                yield Path(folder, name)
