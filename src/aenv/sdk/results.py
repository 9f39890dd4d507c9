"""What the SDK hands back: results, listings, facts about a sandbox. Read from the wire, frozen."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from aenv.models.sandboxes import SandboxMetrics, SandboxState


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a command ended. ``duration`` in seconds, as the caller saw it.

    ``exit_code`` is 128 + signal when a signal ended it. ``truncated``: a background process wrote
    more than is kept, the oldest output is gone.
    """

    stdout_bytes: bytes
    stderr_bytes: bytes
    exit_code: int
    duration: float
    error: str | None = None
    truncated: bool = False

    @property
    def stdout(self) -> str:
        return self.stdout_bytes.decode("utf-8", "replace")

    @property
    def stderr(self) -> str:
        return self.stderr_bytes.decode("utf-8", "replace")

    @property
    def ok(self) -> bool:
        return self.exit_code == 0


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """A sandbox as the server lists it. Tokens are no part of it.

    ``restored``: how it last came back (hot, warm, disk), and ``note`` why not as asked.
    ``parent_sandbox``, ``parent_snapshot``: what it was made from. A paused one has no end.

    ``engine`` is None where a server does not tell; :attr:`isolated` is False for the engine that
    runs code as the server's own user.
    """

    id: str
    template: str
    alias: str | None
    state: SandboxState
    started_at: datetime
    end_at: datetime
    cpu: float
    memory_mb: int
    disk_mb: int
    metadata: dict[str, str] = field(default_factory=dict)
    engine: str | None = None
    pause_mode: str | None = None
    restored: str | None = None
    note: str | None = None
    parent_sandbox: str | None = None
    parent_snapshot: str | None = None

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> SandboxInfo:
        return cls(
            id=body["sandboxID"],
            template=body["templateID"],
            alias=body.get("alias"),
            state=SandboxState(body.get("state", "running")),
            started_at=instant(body["startedAt"]),
            end_at=instant(body["endAt"]),
            cpu=body.get("cpuCount", 0),
            memory_mb=body.get("memoryMB", 0),
            disk_mb=body.get("diskSizeMB", 0),
            metadata=dict(body.get("metadata") or {}),
            engine=body.get("engine"),
            pause_mode=body.get("pauseMode"),
            restored=body.get("restored"),
            note=body.get("note"),
            parent_sandbox=body.get("parentSandboxID"),
            parent_snapshot=body.get("parentSnapshotID"),
        )

    @property
    def isolated(self) -> bool:
        return self.engine != "process"


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """A file, directory or symlink in a sandbox. ``mode`` holds permission bits; ``type`` is a
    link's target's.
    """

    name: str
    path: str
    type: str
    size: int
    mode: int
    permissions: str
    owner: str
    group: str
    modified_at: datetime | None
    symlink_target: str | None = None
    metadata: dict[str, str] = field(default_factory=dict)

    @property
    def is_dir(self) -> bool:
        return self.type == "directory"

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> EntryInfo:
        kind = str(body.get("type", "")).removeprefix("FILE_TYPE_").lower()
        modified = body.get("modifiedTime")
        return cls(
            name=body.get("name", ""),
            path=body.get("path", ""),
            type=kind or "unspecified",
            size=int(body.get("size", 0)),
            mode=int(body.get("mode", 0)),
            permissions=body.get("permissions", ""),
            owner=body.get("owner", ""),
            group=body.get("group", ""),
            modified_at=instant(modified) if modified else None,
            symlink_target=body.get("symlinkTarget"),
            metadata=dict(body.get("metadata") or {}),
        )


@dataclass(frozen=True, slots=True)
class FileEvent:
    """``name`` is relative to the watched directory; ``type`` is create, write, remove, rename or
    chmod.
    """

    name: str
    type: str

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> FileEvent:
        kind = str(body.get("type", "")).removeprefix("EVENT_TYPE_").lower()
        return cls(name=body.get("name", ""), type=kind or "unspecified")


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    pid: int
    argv: tuple[str, ...]
    cwd: str | None
    tag: str | None

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> ProcessInfo:
        config = body.get("config") or {}
        argv = (config.get("cmd", ""), *config.get("args", ()))
        return cls(pid=body["pid"], argv=argv, cwd=config.get("cwd"), tag=body.get("tag"))


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line a sandbox's process or agent wrote. ``seq`` counts them."""

    timestamp: datetime
    message: str
    level: str = "info"
    fields: dict[str, str] = field(default_factory=dict)
    seq: int = 0

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> LogLine:
        return cls(
            timestamp=instant(body["timestamp"]),
            message=body.get("message", ""),
            level=body.get("level", "info"),
            fields=dict(body.get("fields") or {}),
            seq=int(body.get("seq") or 0),
        )


@dataclass(frozen=True, slots=True)
class TemplateSummary:
    """``status`` is the server's word for the newest build: ready, building, error, waiting."""

    id: str
    names: tuple[str, ...]
    status: str
    cpu: float
    memory_mb: int
    disk_mb: int
    updated_at: str | None = None
    digest: str | None = None
    size_bytes: int = 0

    @property
    def ready(self) -> bool:
        return self.status in ("ready", "uploaded")

    @classmethod
    def from_wire(cls, body: dict[str, Any]) -> TemplateSummary:
        names = (*(body.get("names") or ()), *(body.get("aliases") or ()))
        return cls(
            id=body["templateID"],
            names=tuple(dict.fromkeys(names)),
            status=str(body.get("buildStatus") or "ready"),
            cpu=body.get("cpuCount", 0),
            memory_mb=body.get("memoryMB", 0),
            disk_mb=body.get("diskSizeMB", 0),
            updated_at=body.get("updatedAt"),
            digest=body.get("digest"),
            size_bytes=body.get("sizeBytes", 0),
        )


def metrics_from_wire(body: dict[str, Any]) -> SandboxMetrics:
    return SandboxMetrics(
        timestamp=float(body.get("timestampUnix") or instant(body["timestamp"]).timestamp()),
        cpu_count=body.get("cpuCount", 0),
        cpu_used_pct=body.get("cpuUsedPct", 0.0),
        mem_used=body.get("memUsed", 0),
        mem_total=body.get("memTotal", 0),
        mem_cache=body.get("memCache", 0),
        disk_used=body.get("diskUsed", 0),
        disk_total=body.get("diskTotal", 0),
    )


def instant(text: str) -> datetime:
    """RFC 3339 with any number of fractional digits."""
    head, dot, rest = text.partition(".")
    if dot:
        digits = rest.rstrip("Zz")
        fraction, sign, zone = digits, "", ""
        for mark in "+-":
            if mark in digits:
                fraction, sign, zone = digits.partition(mark)
        text = f"{head}.{fraction[:6]:0<6}{sign}{zone}" if sign else f"{head}.{fraction[:6]:0<6}Z"
    return datetime.fromisoformat(text)
