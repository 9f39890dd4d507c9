"""What a sandbox is made of: resources, network policy, state, exit."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from aenv.models.errors import Culprit

AGENT_PORT = 49983
INTERPRETER_PORT = 49999
"""Where a code interpreter inside the sandbox listens (contract e2b §4)."""
ENVD_VERSION = "0.6.13"
DEFAULT_USER = "user"


class SandboxState(StrEnum):
    CREATING = "creating"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    RESUMING = "resuming"
    KILLING = "killing"
    KILLED = "killed"
    FAILED = "failed"


ENDED = "the sandbox ended"
"""How the last line of a sandbox's log begins; the reason follows."""


class EndKind(StrEnum):
    """Why a sandbox ended: it was asked to, its time passed, the guest's init ended, or we (or the
    host) failed.
    """

    KILLED = "killed"
    EXPIRED = "expired"
    GUEST_EXITED = "guest_exited"
    INFRASTRUCTURE = "infrastructure"
    CREATE_FAILED = "create_failed"


@dataclass(frozen=True, slots=True)
class Resources:
    """``cpu`` in vCPUs, ``memory`` and ``disk`` in MiB."""

    cpu: float = 2
    memory_mb: int = 1024
    disk_mb: int = 10240


@dataclass(frozen=True, slots=True)
class NetworkPolicy:
    """Egress and ingress rules. ``allow_out``/``deny_out`` hold addresses or CIDRs; allow beats
    deny.

    Private, link-local, metadata, multicast and host addresses and IPv6 are denied whatever is
    written here; only an operator's ``egress.private_allow`` opens some, and ``private_out``, as
    ``ADDRESS/32:PORT``: what the server itself opens for a build, never a caller.
    """

    allow_internet: bool = True
    allow_out: tuple[str, ...] = ()
    deny_out: tuple[str, ...] = ()
    dns_servers: tuple[str, ...] = ()
    allow_public_traffic: bool = True
    mask_request_host: str | None = None
    private_out: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class SandboxExit:
    """How a machine ended. ``code`` is the init's exit code, or 128 + signal; None when unknown."""

    sandbox_id: str
    code: int | None
    culprit: Culprit
    reason: str


@dataclass(frozen=True, slots=True)
class SandboxMetrics:
    """One sample: bytes, and per cent of one vCPU × cpu_count (100 = all vCPUs busy on average per
    core).
    """

    timestamp: float
    cpu_count: float
    cpu_used_pct: float
    mem_used: int
    mem_total: int
    mem_cache: int
    disk_used: int
    disk_total: int


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One line written by the sandbox's processes (stdout, stderr) or its agent (system)."""

    seq: int
    timestamp: float
    stream: str
    message: str
    level: str = "info"
    fields: dict[str, str] = field(default_factory=dict)
