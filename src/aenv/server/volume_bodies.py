"""What the routes of volumes accept and answer (contract e2b §1.4)."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from aenv.control.volumes import MountRequest, VolumeState
from aenv.models.volumes import DEFAULT_SIZE_MB, Ownership, VolumeEntry
from aenv.server.wire import Body, Reply, StrictBody, wire_time

Owner = Annotated[int, Field(ge=0, le=2**32 - 2)]
Mode = Annotated[int, Field(ge=0, le=0o7777)]


class NewVolume(Body):
    """``sizeMB`` is ours."""

    name: str = Field(min_length=1, max_length=128)
    size_mb: int = DEFAULT_SIZE_MB


class VolumeMountBody(StrictBody):
    name: str = Field(min_length=1, max_length=256)
    path: str = Field(min_length=1, max_length=1024)

    def request(self) -> MountRequest:
        return MountRequest(self.name, self.path)


class EntryChange(StrictBody):
    uid: Owner | None = None
    gid: Owner | None = None
    mode: Mode | None = None

    def ownership(self) -> Ownership:
        return Ownership(self.uid, self.gid, self.mode)


class Volume(Reply):
    """All but the first two are ours. ``usedBytes`` is left out where it is not known."""

    volume_id: str
    name: str
    mode: str
    size_mb: int
    used_bytes: int | None = None
    digest: str | None = None
    created_at: str
    sandbox_ids: list[str] = Field(alias="sandboxIDs")

    @classmethod
    def of(cls, state: VolumeState) -> Volume:
        return cls(**_said(state))


class VolumeAndToken(Volume):
    token: str

    @classmethod
    def of(cls, state: VolumeState) -> VolumeAndToken:
        return cls(**_said(state), token=state.record.token)


class Entry(Reply):
    """``target``: of a link."""

    name: str
    type: str
    path: str
    size: int
    mode: int
    uid: int
    gid: int
    atime: str
    mtime: str
    ctime: str
    target: str | None = None

    @classmethod
    def of(cls, entry: VolumeEntry) -> Entry:
        return cls(
            name=entry.name,
            type=entry.type,
            path=entry.path,
            size=entry.size,
            mode=entry.mode,
            uid=entry.uid,
            gid=entry.gid,
            atime=wire_time(entry.atime),
            mtime=wire_time(entry.mtime),
            ctime=wire_time(entry.ctime),
            target=entry.target,
        )


def _said(state: VolumeState) -> dict[str, Any]:
    record = state.record
    return {
        "volume_id": record.id,
        "name": record.name,
        "mode": record.mode,
        "size_mb": record.size_mb,
        "used_bytes": state.use.used_bytes if state.use else None,
        "digest": record.digest,
        "created_at": wire_time(record.created_at),
        "sandbox_ids": [claim.sandbox_id for claim in state.claims],
    }
