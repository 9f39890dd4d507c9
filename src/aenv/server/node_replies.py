"""What ``/nodes`` and ``/admin`` answer (contract agentenv)."""

from __future__ import annotations

from pydantic import Field

from aenv.control.hosts import HostReport
from aenv.models.memory import MemoryReport, MemoryShare
from aenv.models.pools import PoolShare
from aenv.models.sandboxes import SandboxState
from aenv.server.wire import Reply


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


class MemoryShareReply(Reply):
    """Sandboxes that hold memory; ``promised_bytes``: their limits."""

    sandbox_count: int
    promised_bytes: int
    used_bytes: int

    @classmethod
    def of(cls, share: MemoryShare) -> MemoryShareReply:
        return cls(
            sandbox_count=share.sandboxes, promised_bytes=share.promised, used_bytes=share.used
        )


class MemoryReply(Reply):
    """Ours. ``hot``: paused, and still in memory. ``stalled``: the share of the last second in
    which some task of the host waited for memory; null where the kernel does not tell.
    ``demotions``, ``refusals``: since the server's start.
    """

    running: MemoryShareReply
    hot: MemoryShareReply
    pooled: MemoryShareReply
    promised_to_used: float
    total_bytes: int
    available_bytes: int
    stalled: float | None
    exhausted: bool
    demotions: dict[str, int]
    refusals: dict[str, int]

    @classmethod
    def of(cls, report: MemoryReport) -> MemoryReply:
        return cls(
            running=MemoryShareReply.of(report.running),
            hot=MemoryShareReply.of(report.hot),
            pooled=MemoryShareReply.of(report.pooled),
            promised_to_used=round(report.ratio, 2),
            total_bytes=report.total,
            available_bytes=report.available,
            stalled=None if report.stalled is None else round(report.stalled, 4),
            exhausted=report.exhausted,
            demotions=dict(report.relieved),
            refusals=dict(report.refusals),
        )


class PoolReply(Reply):
    """Ours. Machines of one template that wait for creates. ``hits``, ``misses``: creates since the
    server's start that took one, or found none.
    """

    template: str
    machine_count: int
    wanted_count: int
    memory_bytes: int
    hits: int
    misses: int

    @classmethod
    def of(cls, share: PoolShare) -> PoolReply:
        return cls(
            template=share.template,
            machine_count=share.machines,
            wanted_count=share.wanted,
            memory_bytes=share.memory,
            hits=share.hits,
            misses=share.misses,
        )


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
    memory: MemoryReply
    pools: list[PoolReply]

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
            memory=MemoryReply.of(report.memory),
            pools=[PoolReply.of(share) for share in info.pools.shares],
        )


class ShutdownReply(Reply):
    killed: int
    failed: list[str]
