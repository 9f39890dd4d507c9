"""What the routes of snapshots and forks answer (contracts e2b §1.2, agentenv)."""

from __future__ import annotations

from aenv.control.snapshots import SnapshotRecord
from aenv.control.system import System
from aenv.models.errors import AenvError
from aenv.models.snapshots import SnapshotPlace
from aenv.server import replies
from aenv.server.errors import ErrorReply
from aenv.server.wire import Reply, wire_time


class SnapshotInfo(Reply):
    """All but ``snapshotID`` and ``names`` is ours. ``imageID`` is what ``parentID`` of others and
    ``parentSnapshotID`` of sandboxes name. Bytes: ``ownBytes`` is what deleting it would
    free, ``sharedBytes`` what others need as well. ``place``: ``local`` (on this host), ``stored``
    (in the blob store), ``both``, or ``lost``.
    """

    snapshot_id: str
    names: list[str]
    template_id: str
    sandbox_id: str
    image_id: str
    parent_id: str | None
    base: str
    has_memory: bool
    own_bytes: int
    shared_bytes: int
    place: SnapshotPlace
    created_at: str
    updated_at: str

    @classmethod
    def of(cls, record: SnapshotRecord, place: SnapshotPlace) -> SnapshotInfo:
        whole = record.disk_bytes + record.memory_bytes
        return cls(
            snapshot_id=record.public_id,
            names=[record.public_id] if record.name else [],
            template_id=record.template_id or "",
            sandbox_id=record.sandbox_id,
            image_id=record.id,
            parent_id=record.parent,
            base=record.base,
            has_memory=record.has_memory,
            own_bytes=record.own_bytes,
            shared_bytes=max(0, whole - record.own_bytes),
            place=place,
            created_at=wire_time(record.created_at),
            updated_at=wire_time(record.updated_at),
        )


class SnapshotDetail(SnapshotInfo):
    cpu_count: float | int
    memory_mb: int
    disk_size_mb: int

    @classmethod
    def of(cls, record: SnapshotRecord, place: SnapshotPlace) -> SnapshotDetail:
        info = SnapshotInfo.of(record, place)
        return cls(**info.model_dump(), **replies.sizes(record.resources))


class ForkResult(Reply):
    """One of both."""

    sandbox: replies.Sandbox | None = None
    error: ErrorReply | None = None

    @classmethod
    def of(cls, outcome: replies.SandboxRecord | AenvError, system: System) -> ForkResult:
        if isinstance(outcome, AenvError):
            return cls(
                error=ErrorReply(
                    code=outcome.status,
                    message=outcome.message,
                    error_code=outcome.code,
                    culprit=outcome.culprit.value,
                )
            )
        return cls(sandbox=replies.Sandbox.of(outcome, system))
