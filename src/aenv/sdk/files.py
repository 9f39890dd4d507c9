"""Files of a sandbox: read, write, list, watch, and whole trees."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import IO, Any

from aenv.models.errors import ConflictError, NotFoundError
from aenv.sdk import trees, watches
from aenv.sdk.archives import Progress
from aenv.sdk.client import Agent
from aenv.sdk.results import EntryInfo
from aenv.sdk.watches import AsyncWatch

_CHUNK = 256 << 10
_SERVICE = "filesystem.Filesystem"


class AsyncFiles:
    """Relative paths start at the user's home. ``user`` decides rights and ownership."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    async def read(self, path: str, *, user: str | None = None) -> str:
        """The text of a file, decoded as UTF-8 with replacement. NotFoundError when missing."""
        return (await self.read_bytes(path, user=user)).decode("utf-8", "replace")

    async def read_bytes(self, path: str, *, user: str | None = None) -> bytes:
        parts = [chunk async for chunk in self.stream(path, user=user)]
        return b"".join(parts)

    async def stream(self, path: str, *, user: str | None = None) -> AsyncGenerator[bytes, None]:
        """The file in pieces, for what does not fit in memory."""
        async with self._agent.download("/files", params=_query(path, user)) as answer:
            async for chunk in answer.aiter_bytes():
                yield chunk

    async def write(
        self, path: str, data: str | bytes | IO[bytes], *, user: str | None = None
    ) -> str:
        """Create or replace a file and return its absolute path. Parents are made.

        DiskFullError when it does not fit; nothing is left then.
        """
        content = data.encode() if isinstance(data, str) else data
        answer = await self._agent.request(
            "POST",
            "/files",
            params=_query(path, user),
            headers={"content-type": "application/octet-stream"},
            content=content if isinstance(content, bytes) else _pieces(content),
        )
        return str(answer.json()[0]["path"])

    async def list(
        self, path: str = ".", *, depth: int = 1, user: str | None = None
    ) -> builtins.list[EntryInfo]:
        """The entries of a directory, ``depth`` levels down."""
        reply = await self._call("ListDir", user, path=path, depth=depth)
        return [EntryInfo.from_wire(entry) for entry in reply.get("entries", ())]

    async def stat(self, path: str, *, user: str | None = None) -> EntryInfo:
        """NotFoundError when missing."""
        reply = await self._call("Stat", user, path=path)
        return EntryInfo.from_wire(reply["entry"])

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        try:
            await self.stat(path, user=user)
        except NotFoundError:
            return False
        return True

    async def make_dir(self, path: str, *, user: str | None = None) -> bool:
        """Make it and its parents; False when it is there already."""
        try:
            await self._call("MakeDir", user, path=path)
        except ConflictError:
            return False
        return True

    async def move(self, source: str, destination: str, *, user: str | None = None) -> EntryInfo:
        reply = await self._call("Move", user, source=source, destination=destination)
        return EntryInfo.from_wire(reply["entry"])

    async def remove(self, path: str, *, user: str | None = None) -> None:
        """Remove a file or a whole directory; no error when it is not there."""
        await self._call("Remove", user, path=path)

    async def watch(
        self, path: str, *, recursive: bool = False, user: str | None = None
    ) -> AsyncWatch:
        """Watch a directory; every change after this call returned is seen.

        NotFoundError when missing, InvalidRequestError when it is no directory.
        """
        return await watches.start(self._agent, path, recursive=recursive, user=user)

    async def upload(
        self,
        source: str | Path,
        destination: str,
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Copy a local file or tree; modes, mtimes and symlinks are kept (by tar in the guest)."""
        await trees.upload(self._agent, Path(source), destination, user=user, progress=progress)

    async def download(
        self,
        source: str,
        destination: str | Path,
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> builtins.list[str]:
        """Copy a file or tree to this machine; nothing is written outside ``destination``.

        Returns what was left out: special files, and symlinks that point outside of the copy.
        """
        return await trees.download(
            self._agent, source, Path(destination), user=user, progress=progress
        )

    async def _call(self, method: str, user: str | None, **message: str | int) -> dict[str, Any]:
        return await self._agent.rpc(f"{_SERVICE}/{method}", message, user=user)


def _query(path: str, user: str | None) -> dict[str, str]:
    return {"path": path, "username": user} if user else {"path": path}


async def _pieces(stream: IO[bytes]) -> AsyncIterator[bytes]:
    while piece := await asyncio.to_thread(stream.read, _CHUNK):
        yield piece
