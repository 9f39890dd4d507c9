"""What the routes answer (contracts e2b §1.2, §1.3, agentenv), made from what control returns."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from aenv.control import networks
from aenv.control.hosts import HostReport
from aenv.control.sandboxes import SandboxRecord
from aenv.control.system import System
from aenv.control.templates import Template
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

    @classmethod
    def of(cls, record: SandboxRecord, system: System) -> Sandbox:
        return cls(
            template_id=record.template_id,
            sandbox_id=record.id,
            client_id=system.settings.folders.instance,
            envd_version=ENVD_VERSION,
            alias=record.template,
            envd_access_token=record.access_token,
            traffic_access_token=record.traffic_token,
            domain=system.domain,
        )


class ListedSandbox(Reply):
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
    metadata: dict[str, str]

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


class SandboxDetail(ListedSandbox):
    envd_access_token: str
    traffic_access_token: str | None
    allow_internet_access: bool
    domain: str
    network: NetworkReply
    lifecycle: Lifecycle
    volume_mounts: list[Any]

    @classmethod
    def of(cls, record: SandboxRecord, system: System) -> SandboxDetail:
        rules = networks.from_json(record.network)
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
            lifecycle=Lifecycle(),
            volume_mounts=[],
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
            cpu_count=_number(sample.cpu_count),
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


class TemplateReply(Reply):
    template_id: str
    build_id: str
    cpu_count: float | int
    memory_mb: int
    disk_size_mb: int
    public: bool
    aliases: list[str]
    names: list[str]
    created_at: str
    updated_at: str
    created_by: None = None
    last_spawned_at: str | None
    spawn_count: int
    build_count: int
    envd_version: str
    build_status: str
    reproducible: bool

    @classmethod
    def of(cls, template: Template, system: System) -> TemplateReply:
        built = wire_seconds(template.info.built_at if template.info else 0)
        return cls(
            template_id=template.id,
            build_id=template.build_id,
            **_sizes(_resources(template, system)),
            public=True,
            aliases=[template.name],
            names=[template.name],
            created_at=built,
            updated_at=built,
            last_spawned_at=_last_use(template),
            spawn_count=template.uses.count,
            build_count=1,
            envd_version=ENVD_VERSION,
            build_status=template.status.value,
            reproducible=template.info is None or template.info.reproducible,
        )


class Build(Reply):
    build_id: str
    status: str
    created_at: str
    updated_at: str
    finished_at: str | None
    cpu_count: float | int
    memory_mb: int
    disk_size_mb: int
    envd_version: str


class TemplateWithBuilds(Reply):
    template_id: str
    public: bool
    aliases: list[str]
    names: list[str]
    created_at: str
    updated_at: str
    last_spawned_at: str | None
    spawn_count: int
    builds: list[Build]

    @classmethod
    def of(cls, template: Template, system: System) -> TemplateWithBuilds:
        built = wire_seconds(template.info.built_at if template.info else 0)
        build = Build(
            build_id=template.build_id,
            status=template.status.value,
            created_at=built,
            updated_at=built,
            finished_at=built if template.info else None,
            **_sizes(_resources(template, system)),
            envd_version=ENVD_VERSION,
        )
        return cls(
            template_id=template.id,
            public=True,
            aliases=[template.name],
            names=[template.name],
            created_at=built,
            updated_at=built,
            last_spawned_at=_last_use(template),
            spawn_count=template.uses.count,
            builds=[build],
        )


class Alias(Reply):
    template_id: str
    public: bool


class BuildProgress(Reply):
    """How far a built-in template is; ours."""

    name: str
    status: str
    fraction: float
    step: str
    error: str | None


class MachineInfo(Reply):
    cpu_architecture: str
    kernel: str
    engines: list[str]


class NodeMetrics(Reply):
    allocated_cpu: float = Field(alias="allocatedCPU")
    cpu_percent: float
    cpu_count: int
    allocated_memory_bytes: int
    memory_used_bytes: int
    memory_total_bytes: int
    disks: list[dict[str, int]]


class NodeReply(Reply):
    id: str
    version: str
    status: str
    sandbox_count: int
    sandbox_starting_count: int
    sandbox_paused_count: int
    create_successes: int
    create_fails: int
    machine_info: MachineInfo
    metrics: NodeMetrics

    @classmethod
    def of(cls, report: HostReport) -> NodeReply:
        info = report.info
        return cls(
            id=info.node_id,
            version=info.version,
            status="ready",
            sandbox_count=report.count(SandboxState.RUNNING),
            sandbox_starting_count=report.count(SandboxState.CREATING),
            sandbox_paused_count=report.count(SandboxState.PAUSED),
            create_successes=report.creates_ok,
            create_fails=report.creates_failed,
            machine_info=MachineInfo(
                cpu_architecture=info.machine,
                kernel=info.kernel,
                engines=[capabilities.engine for capabilities in info.capabilities],
            ),
            metrics=NodeMetrics(
                allocated_cpu=report.promised_cpu,
                cpu_percent=info.cpu_percent,
                cpu_count=info.cpu_count,
                allocated_memory_bytes=report.promised_memory,
                memory_used_bytes=info.memory_total - info.memory_available,
                memory_total_bytes=info.memory_total,
                disks=[
                    {
                        "totalBytes": info.disk_total,
                        "usedBytes": info.disk_total - info.disk_available,
                    }
                ],
            ),
        )


class ShutdownReply(Reply):
    killed: int
    failed: list[str]


def _listed(record: SandboxRecord, system: System) -> dict[str, Any]:
    paused = record.state in (SandboxState.PAUSED, SandboxState.RESUMING)
    return {
        "template_id": record.template_id,
        "alias": record.template,
        "sandbox_id": record.id,
        "client_id": system.settings.folders.instance,
        "started_at": wire_time(record.started_at),
        "end_at": wire_time(record.end_at),
        **_sizes(record.resources),
        "state": "paused" if paused else "running",
        "envd_version": ENVD_VERSION,
        "metadata": record.labels,
    }


def _sizes(resources: Resources) -> dict[str, Any]:
    return {
        "cpu_count": _number(resources.cpu),
        "memory_mb": resources.memory_mb,
        "disk_size_mb": resources.disk_mb,
    }


def _resources(template: Template, system: System) -> Resources:
    return template.info.resources if template.info else system.settings.defaults


def _number(value: float) -> float | int:
    """Whole counts of vCPUs as integers: the clients declare them so."""
    return int(value) if float(value).is_integer() else value


def _last_use(template: Template) -> str | None:
    used = template.uses.last_used_at
    return None if used is None else wire_time(used)
