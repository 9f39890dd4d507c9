"""The node port: one host as control sees it. ``local.LocalNode`` is in-process; a remote one has
the same face.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from aenv.models.sandboxes import (
    LogEntry,
    NetworkPolicy,
    Resources,
    SandboxExit,
    SandboxMetrics,
)
from aenv.models.templates import TemplateInfo, TemplateProgress
from aenv.node.engine import Address, Capabilities, Finding


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What control asks a node to run. Tokens and ``env_vars`` are secrets: never log it."""

    sandbox_id: str
    template: str
    resources: Resources
    network: NetworkPolicy
    access_token: str = field(repr=False)
    host_secret: str = field(repr=False)
    env_vars: dict[str, str] = field(default_factory=dict, repr=False)
    engine: str | None = None


@dataclass(frozen=True, slots=True)
class RunningSandbox:
    """``agent`` is dialled for AGENT_PORT, ``guest_host`` for every other guest port."""

    sandbox_id: str
    agent: Address
    guest_host: str
    template: TemplateInfo
    engine: str


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Capacity and use of the host: vCPUs and bytes. ``memory_available``/``disk_available`` are
    measured now.
    """

    node_id: str
    version: str
    capabilities: tuple[Capabilities, ...]
    cpu_count: int
    cpu_percent: float
    memory_total: int
    memory_available: int
    disk_total: int
    disk_available: int
    kernel: str
    machine: str


@dataclass(frozen=True, slots=True)
class AdoptRequest:
    """What a restarted server knows of a sandbox that should still run."""

    sandbox_id: str
    template: str
    host_secret: str = field(repr=False)
    access_token: str = field(repr=False)
    engine: str = "gvisor"


@dataclass(frozen=True, slots=True)
class Adoption:
    """The outcome of a restart: who still runs, who ended meanwhile and how, what was reaped."""

    running: tuple[RunningSandbox, ...] = ()
    ended: tuple[SandboxExit, ...] = ()
    reaped: tuple[str, ...] = ()


class Node(ABC):
    """Methods raise the AenvError tree; none of them touches the catalog."""

    @abstractmethod
    async def start(self, adopt: tuple[AdoptRequest, ...]) -> Adoption:
        """Prepare the host, adopt what still runs, destroy what is not in ``adopt``."""

    @abstractmethod
    async def close(self) -> None:
        """Let go; sandboxes keep running."""

    @abstractmethod
    async def info(self) -> NodeInfo: ...

    @abstractmethod
    async def probe(self) -> list[Finding]: ...

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> RunningSandbox:
        """Boot, initialise the agent, run the template's start command. Nothing is left on failure.

        Raises NotFoundError (template), TemplateNotReadyError (being built; progress in the
        message), CapabilityError, CapacityError (memory or disk short), EngineError.
        """

    @abstractmethod
    async def destroy(self, sandbox_id: str) -> None:
        """Idempotent. Logs stay readable until :meth:`forget`."""

    @abstractmethod
    async def forget(self, sandbox_id: str) -> None:
        """Drop logs and metrics of a sandbox that has ended."""

    @abstractmethod
    async def set_network(self, sandbox_id: str, policy: NetworkPolicy) -> None: ...

    @abstractmethod
    async def metrics(
        self, sandbox_id: str, *, start: float | None = None, end: float | None = None
    ) -> list[SandboxMetrics]:
        """Samples in time order; the first is there as soon as the sandbox runs."""

    @abstractmethod
    async def logs(
        self,
        sandbox_id: str,
        *,
        after: int = 0,
        limit: int = 1000,
        descending: bool = False,
        level: str | None = None,
        search: str | None = None,
        start: float | None = None,
    ) -> list[LogEntry]:
        """Entries with ``seq > after`` (``seq < after`` when descending and after > 0), at most
        ``limit``.

        ``level`` is the least severity, ``search`` a part of the message. ``start`` in unix
        seconds: nothing earlier, or when descending nothing later.
        """

    @abstractmethod
    def exits(self) -> AsyncIterator[SandboxExit]:
        """Machines that ended by themselves (not through :meth:`destroy`), as it happens."""

    @abstractmethod
    async def templates(self) -> list[TemplateInfo]: ...

    @abstractmethod
    async def template_progress(self, name: str) -> TemplateProgress: ...

    @abstractmethod
    async def ensure_template(self, name: str, *, wait: float = 0) -> TemplateProgress:
        """Start or join the build of a built-in template and wait up to ``wait`` seconds.
        NotFoundError if unknown.
        """

    @abstractmethod
    async def delete_template(self, name: str) -> None:
        """Free a template's files. NotFoundError; ConflictError while sandboxes use it."""
