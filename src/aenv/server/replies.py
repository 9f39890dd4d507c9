"""What the routes answer (contracts e2b §1.2, §1.3, agentenv), made from what control returns."""

from __future__ import annotations

from typing import Any

from aenv.control import networks
from aenv.control.sandboxes import SandboxRecord as SandboxRecord
from aenv.control.system import System
from aenv.models.sandboxes import (
    ENVD_VERSION,
    LogEntry,
    Resources,
    SandboxMetrics,
    SandboxState,
)
from aenv.server.wire import Reply, wire_seconds, wire_time


class Sandbox(Reply):
    template_id: str
    sandbox_id: str
    client_id: str
    envd_version: str
    alias: str
    envd_access_token: str
    traffic_access_token: str | None
    domain: str
    engine: str

    @classmethod
    def of(cls, record: SandboxRecord, system: System) -> Sandbox:
        return cls(
            template_id=record.template_id,
            sandbox_id=record.id,
            client_id=system.settings.folders.instance,
            envd_version=ENVD_VERSION,
            alias=system.building.library.names.get(record.template_id, record.template),
            envd_access_token=record.access_token,
            traffic_access_token=record.traffic_token,
            domain=system.domain,
            engine=record.engine,
        )


class ListedSandbox(Reply):
    """``engine`` is ours: ``process`` means that nothing isolates the sandbox."""

    template_id: str
    alias: str
    sandbox_id: str
    client_id: str
    started_at: str
    end_at: str
    cpu_count: float | int
    memory_mb: int
    disk_size_mb: int
    state: str
    envd_version: str
    engine: str
    metadata: dict[str, str]
    parent_sandbox_id: str | None
    parent_snapshot_id: str | None

    @classmethod
    def of(cls, record: SandboxRecord, system: System) -> ListedSandbox:
        return cls(**_listed(record, system))


class Lifecycle(Reply):
    auto_resume: bool = False
    on_timeout: str = "kill"


class NetworkReply(Reply):
    allow_public_traffic: bool
    allow_out: list[str]
    deny_out: list[str]
    dns_servers: list[str]
    mask_request_host: str | None


class VolumeMount(Reply):
    """``readOnly`` and ``ownCopy`` are ours."""

    name: str
    path: str
    read_only: bool
    own_copy: bool


class SandboxDetail(ListedSandbox):
    """``restored``, ``note``, ``parentSandboxID`` and ``parentSnapshotID`` are ours: how it last
    came back (hot, warm, or booted from its disk), why not as asked, what it was made from.

    What has a default here is left out where there is nothing to say: E2B's clients take no null.
    """

    envd_access_token: str
    traffic_access_token: str | None
    allow_internet_access: bool
    domain: str
    network: NetworkReply
    lifecycle: Lifecycle
    volume_mounts: list[VolumeMount]
    pause_mode: str | None = None
    envd_unresponsive_at_pause: bool | None = None
    restored: str | None = None
    note: str | None = None

    @classmethod
    def of(cls, record: SandboxRecord, system: System) -> SandboxDetail:
        rules = networks.from_json(record.network)
        said: dict[str, Any] = {
            "pause_mode": record.pause_mode,
            "envd_unresponsive_at_pause": record.unresponsive_at_pause,
            "restored": record.restored,
            "note": record.note,
        }
        return cls(
            **_listed(record, system),
            envd_access_token=record.access_token,
            traffic_access_token=record.traffic_token,
            allow_internet_access=rules.allow_internet,
            domain=system.domain,
            network=NetworkReply(
                allow_public_traffic=rules.allow_public_traffic,
                allow_out=list(rules.allow_out),
                deny_out=list(rules.deny_out),
                dns_servers=list(rules.dns_servers),
                mask_request_host=rules.mask_request_host,
            ),
            lifecycle=Lifecycle(
                auto_resume=record.auto_resume,
                on_timeout="pause" if record.auto_pause else "kill",
            ),
            volume_mounts=[
                VolumeMount(name=one.name, path=one.path, read_only=one.read_only, own_copy=one.own)
                for one in record.volumes
            ],
            **{name: value for name, value in said.items() if value},
        )


class Metric(Reply):
    timestamp: str
    timestamp_unix: int
    cpu_count: float | int
    cpu_used_pct: float
    mem_used: int
    mem_total: int
    mem_cache: int
    disk_used: int
    disk_total: int

    @classmethod
    def of(cls, sample: SandboxMetrics) -> Metric:
        return cls(
            timestamp=wire_seconds(sample.timestamp),
            timestamp_unix=int(sample.timestamp),
            cpu_count=number(sample.cpu_count),
            cpu_used_pct=sample.cpu_used_pct,
            mem_used=sample.mem_used,
            mem_total=sample.mem_total,
            mem_cache=sample.mem_cache,
            disk_used=sample.disk_used,
            disk_total=sample.disk_total,
        )


class MetricsOfMany(Reply):
    sandboxes: dict[str, Metric]


class Log(Reply):
    """``seq`` is ours: the exact cursor (``after``) for reading on."""

    timestamp: str
    message: str
    level: str
    fields: dict[str, str]
    seq: int

    @classmethod
    def of(cls, entry: LogEntry) -> Log:
        return cls(
            timestamp=wire_seconds(entry.timestamp),
            message=entry.message,
            level=entry.level,
            fields={"stream": entry.stream, **entry.fields},
            seq=entry.seq,
        )


class Logs(Reply):
    logs: list[Log]


class LogLine(Reply):
    timestamp: str
    line: str


class LogsV1(Reply):
    logs: list[LogLine]
    log_entries: list[Log]


def _listed(record: SandboxRecord, system: System) -> dict[str, Any]:
    paused = record.state in (SandboxState.PAUSED, SandboxState.RESUMING)
    return {
        "template_id": record.template_id,
        "alias": system.building.library.names.get(record.template_id, record.template),
        "sandbox_id": record.id,
        "client_id": system.settings.folders.instance,
        "started_at": wire_time(record.started_at),
        "end_at": wire_time(record.end_at),
        **sizes(record.resources),
        "state": "paused" if paused else "running",
        "envd_version": ENVD_VERSION,
        "engine": record.engine,
        "metadata": record.labels,
        "parent_sandbox_id": record.parent_sandbox,
        "parent_snapshot_id": record.parent_snapshot,
    }


def sizes(resources: Resources) -> dict[str, Any]:
    return {
        "cpu_count": number(resources.cpu),
        "memory_mb": resources.memory_mb,
        "disk_size_mb": resources.disk_mb,
    }


def number(value: float) -> float | int:
    """Whole counts of vCPUs as integers: the clients declare them so."""
    return int(value) if float(value).is_integer() else value
