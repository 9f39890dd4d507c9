"""Volumes: folders that outlive sandboxes. ``_sync.py`` is derived from this module."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from aenv.models.errors import NotFoundError
from aenv.sdk import servers
from aenv.sdk.client import Client
from aenv.sdk.results import instant

_CHUNK = 1 << 20
_LONG = 3600.0


@dataclass(frozen=True, slots=True)
class VolumeInfo:
    """``mode``: exclusive or read-only. ``used_bytes``: None where it is not known. ``sandboxes``:
    who has it, running or paused.
    """

    id: str
    name: str
    mode: str
    size_mb: int
    used_bytes: int | None
    digest: str | None
    sandboxes: tuple[str, ...]
    created_at: datetime

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> VolumeInfo:
        return cls(
            id=body["volumeID"],
            name=body["name"],
            mode=body["mode"],
            size_mb=body["sizeMB"],
            used_bytes=body.get("usedBytes"),
            digest=body.get("digest"),
            sandboxes=tuple(body.get("sandboxIDs") or ()),
            created_at=instant(body["createdAt"]),
        )


@dataclass(frozen=True, slots=True)
class VolumeFile:
    """A name in a volume. ``type``: file, directory, symlink, or unknown for what is not opened."""

    path: str
    type: str
    size: int
    mode: int
    uid: int
    gid: int
    modified_at: datetime
    target: str | None = None

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> VolumeFile:
        names = ("path", "type", "size", "mode", "uid", "gid")
        modified = instant(body["mtime"])
        return cls(**{n: body[n] for n in names}, modified_at=modified, target=body.get("target"))


class AsyncVolume:
    """A volume and its files; paths are those within it. ``url``, ``api_key`` and ``profile`` name
    the server as for sandboxes.
    """

    def __init__(self, client: Client, body: dict[str, Any]) -> None:
        self._client = client
        self._token = str(body["token"])
        self._info = VolumeInfo.from_wire(body)

    def __repr__(self) -> str:
        return f"AsyncVolume({self.name!r})"

    @property
    def id(self) -> str:
        return self._info.id

    @property
    def name(self) -> str:
        return self._info.name

    @classmethod
    async def open(
        cls,
        name: str,
        *,
        create: bool = True,
        size_mb: int | None = None,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> AsyncVolume:
        """The volume of that name, or id, made if there is none. NotFoundError without ``create``.
        ``size_mb``: of one that is made.
        """
        client = await servers.connect(url, api_key, profile)
        try:
            found = await _find(client, name)
            if found is not None:
                answer = await client.call("GET", f"/volumes/{found}")
            elif create:
                body = {"name": name} | ({"sizeMB": size_mb} if size_mb is not None else {})
                answer = await client.call("POST", "/volumes", json=body)
            else:
                raise NotFoundError(f"there is no volume {name!r}; see: aenv volume ls")
            return cls(client, answer.json())
        except BaseException:
            await client.aclose()
            raise

    @classmethod
    async def list(
        cls, *, url: str | None = None, api_key: str | None = None, profile: str | None = None
    ) -> builtins.list[VolumeInfo]:
        """By name."""
        client = await servers.connect(url, api_key, profile)
        try:
            answer = await client.call("GET", "/volumes")
            return [VolumeInfo.from_wire(one) for one in answer.json()]
        finally:
            await client.aclose()

    async def close(self) -> None:
        """Close the connections; the volume stays."""
        await self._client.aclose()

    async def info(self) -> VolumeInfo:
        """As it is now."""
        answer = await self._client.call("GET", f"/volumes/{self.id}")
        return VolumeInfo.from_wire(answer.json())

    async def seal(self) -> VolumeInfo:
        """Make it read-only for good; ``digest`` is then that of its tree. ConflictError while a
        sandbox may write to it.
        """
        path = f"/aenv/volumes/{self.id}/seal"
        answer = await self._client.call("POST", path, patience=_LONG)
        return VolumeInfo.from_wire(answer.json())

    async def delete(self) -> None:
        """ConflictError names the sandboxes that have it, running or paused."""
        await self._client.call("DELETE", f"/volumes/{self.id}", patience=_LONG)

    async def read(self, path: str) -> bytes:
        """A whole file."""
        async with aclosing(self.stream(path)) as pieces:
            return b"".join([piece async for piece in pieces])

    async def stream(self, path: str) -> AsyncGenerator[bytes, None]:
        """A file, as it comes."""
        where, query = self._at("file"), {"path": path}
        pieces = self._client.pieces(where, params=query, headers=self._bearer)
        async with aclosing(pieces):
            async for piece in pieces:
                yield piece

    async def download(self, path: str, target: str | Path) -> Path:
        """A file, to one of this machine, which is there as a whole or as before."""
        whole = Path(target)
        part = whole.with_name(f".{whole.name}.part")
        try:
            with await asyncio.to_thread(part.open, "wb") as file:
                async with aclosing(self.stream(path)) as pieces:
                    async for piece in pieces:
                        await asyncio.to_thread(file.write, piece)
            await asyncio.to_thread(part.replace, whole)
        finally:
            await asyncio.to_thread(part.unlink, missing_ok=True)
        return whole

    async def write(self, path: str, data: str | bytes | Path) -> VolumeFile:
        """A file, whole or as before; ``data``: its content, or a file of this machine. Folders
        above it are made.
        """
        sent = _pieces(data) if isinstance(data, Path) else data
        answer = await self._client.call(
            "PUT",
            self._at("file"),
            params={"path": path},
            content=sent.encode() if isinstance(sent, str) else sent,
            headers=self._bearer,
            patience=_LONG,
        )
        return VolumeFile.from_wire(answer.json())

    async def files(self, path: str = "/", *, depth: int = 1) -> builtins.list[VolumeFile]:
        """What is below a folder, ``depth`` (1 to 64) levels deep."""
        query: dict[str, str | int] = {"path": path, "depth": depth}
        answer = await self._call("GET", "dir", query)
        return [VolumeFile.from_wire(one) for one in answer.json()]

    async def make_dir(self, path: str) -> VolumeFile:
        """With the folders above it; one that is there stays as it is."""
        answer = await self._call("POST", "dir", {"path": path, "force": "true"})
        return VolumeFile.from_wire(answer.json())

    async def remove(self, path: str) -> None:
        """A folder with all in it. NotFoundError."""
        await self._call("DELETE", "path", {"path": path})

    async def _call(self, method: str, kind: str, query: dict[str, str | int]) -> Any:
        return await self._client.call(
            method, self._at(kind), params=query, headers=self._bearer, patience=_LONG
        )

    def _at(self, kind: str) -> str:
        return f"/volumecontent/{self.id}/{kind}"

    @property
    def _bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self._token}"}


async def _find(client: Client, name: str) -> str | None:
    """The id of the volume of that name or id."""
    for one in (await client.call("GET", "/volumes")).json():
        if name in (one["name"], one["volumeID"]):
            return str(one["volumeID"])
    return None


async def _pieces(source: Path) -> AsyncGenerator[bytes, None]:
    with await asyncio.to_thread(source.open, "rb") as file:
        while piece := await asyncio.to_thread(file.read, _CHUNK):
            yield piece
