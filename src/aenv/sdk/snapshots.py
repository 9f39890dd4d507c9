"""Kept snapshots: looked at, verified, deleted. ``_sync.py`` is derived from this module."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from urllib.parse import quote

from aenv.models.errors import NotFoundError
from aenv.sdk import servers
from aenv.sdk.results import instant

PAGE = 100
VERIFY_TIMEOUT = 3600.0


@dataclass(frozen=True, slots=True)
class SnapshotInfo:
    """A sandbox as it was at one moment. Bytes: ``own_bytes`` is what deleting it frees,
    ``shared_bytes`` what others need as well.

    ``sandbox`` is the id of its source; ``parent`` the ``image`` of the snapshot it came from.
    ``place``: ``local``, ``stored`` (in the blob store), ``both``; ``lost`` when it is nowhere.
    """

    id: str
    names: tuple[str, ...]
    template: str
    sandbox: str
    base: str
    has_memory: bool
    own_bytes: int
    shared_bytes: int
    created_at: datetime
    image: str = ""
    parent: str | None = None
    place: str = "local"

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> SnapshotInfo:
        return cls(
            id=body["snapshotID"],
            names=tuple(body.get("names") or ()),
            template=body.get("templateID", ""),
            sandbox=body.get("sandboxID", ""),
            base=body.get("base", ""),
            has_memory=body.get("hasMemory", True),
            own_bytes=body.get("ownBytes", 0),
            shared_bytes=body.get("sharedBytes", 0),
            created_at=instant(body["createdAt"]),
            image=body.get("imageID", ""),
            parent=body.get("parentID"),
            place=body.get("place", "local"),
        )


class AsyncSnapshot:
    """The snapshots of a server. ``url``, ``api_key`` and ``profile`` name it as for sandboxes."""

    @classmethod
    async def list(
        cls,
        *,
        sandbox: str | None = None,
        name: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> builtins.list[SnapshotInfo]:
        """The newest first; those of one source ``sandbox``, or of one ``name``, if given."""
        client = await servers.connect(url, api_key, profile)
        params: dict[str, str | int] = {"limit": PAGE}
        params |= {key: text for key, text in (("sandboxID", sandbox), ("name", name)) if text}
        found: list[SnapshotInfo] = []
        try:
            while True:
                answer = await client.call("GET", "/snapshots", params=params)
                found += [SnapshotInfo.from_wire(entry) for entry in answer.json()]
                token = answer.headers.get("x-next-token")
                if not token:
                    return found
                params["nextToken"] = token
        finally:
            await client.aclose()

    @classmethod
    async def get(
        cls,
        snapshot_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> SnapshotInfo:
        """By id or name; NotFoundError."""
        client = await servers.connect(url, api_key, profile)
        try:
            path = f"/snapshots/{quote(snapshot_id, safe='')}"
            return SnapshotInfo.from_wire((await client.call("GET", path)).json())
        finally:
            await client.aclose()

    @classmethod
    async def verify(
        cls,
        snapshot_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> None:
        """Have all of it read and compared. SnapshotDamagedError, NotFoundError."""
        client = await servers.connect(url, api_key, profile)
        try:
            path = f"/aenv/snapshots/{quote(snapshot_id, safe='')}/verify"
            await client.call("POST", path, patience=VERIFY_TIMEOUT)
        finally:
            await client.aclose()

    @classmethod
    async def evict(
        cls,
        snapshot_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> None:
        """Have it in the blob store alone; what starts from it fetches it again. Also the id of a
        paused sandbox. NotFoundError, ConflictError while something starts from it.
        """
        client = await servers.connect(url, api_key, profile)
        try:
            path = f"/aenv/snapshots/{quote(snapshot_id, safe='')}/evict"
            await client.call("POST", path, patience=VERIFY_TIMEOUT)
        finally:
            await client.aclose()

    @classmethod
    async def delete(
        cls,
        snapshot_id: str,
        *,
        all_tags: bool = False,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> bool:
        """Free it; sandboxes that were started from it run on. False when there is none. A name
        means its default tag; ``all_tags``: every tag of that name.
        """
        client = await servers.connect(url, api_key, profile)
        try:
            reference = snapshot_id
            if all_tags:
                answer = await client.call("GET", "/snapshots", params={"name": snapshot_id})
                if not (found := answer.json()):
                    return False
                reference = SnapshotInfo.from_wire(found[0]).template
            await client.call("DELETE", f"/templates/{quote(reference, safe='')}")
        except NotFoundError:
            return False
        finally:
            await client.aclose()
        return True
