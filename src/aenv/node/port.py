"""The node port: one host as control sees it. ``local.LocalNode`` is in-process; a remote one has
the same face.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aenv.models.blobs import SpaceUse
from aenv.models.errors import CapabilityError
from aenv.models.memory import MemoryReport
from aenv.models.pools import PoolReport
from aenv.models.registries import RegistryLogin
from aenv.models.sandboxes import (
    LogEntry,
    NetworkPolicy,
    Resources,
    SandboxExit,
    SandboxMetrics,
)
from aenv.models.snapshots import ColdCopy, Kept, RestoreMode, SnapshotImage
from aenv.models.templates import GuestFacts, TemplateInfo, TemplateProgress
from aenv.models.volumes import VolumeMount, VolumeUse
from aenv.node.engine import Address, Capabilities, Finding
from aenv.node.volumes.content import VolumeContent
from aenv.node.workbench import Surroundings, Workbench

if TYPE_CHECKING:
    from aenv.store.blobs.store import BlobStore


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
    snapshot: str | None = None
    """A stored snapshot to start from, with a new identity, instead of the template's image."""
    secret_env: frozenset[str] = frozenset()
    """Names in ``env_vars`` that forks of this sandbox are not given."""
    reboot: bool = False
    """Boot from the snapshot's disk although it has memory, and although the machine is hot."""
    facts: GuestFacts | None = None
    """In place of what the template or the snapshot says of its guest."""
    volumes: tuple[VolumeMount, ...] = ()


@dataclass(frozen=True, slots=True)
class RunningSandbox:
    """``agent`` is dialled for AGENT_PORT, ``guest_host`` for every other guest port.

    ``restored`` says how it came back (None: a fresh boot), ``note`` why not as asked: a memory
    image that could not be restored, for example. ``pooled``: of a machine that had been waiting.
    """

    sandbox_id: str
    agent: Address
    guest_host: str
    template: TemplateInfo
    engine: str
    restored: RestoreMode | None = None
    note: str | None = None
    pooled: bool = False


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """Capacity and use of the host: vCPUs and bytes. ``memory_available``/``disk_available`` are
    measured now. ``pools``: what waits for creates.
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
    pools: PoolReport = field(default_factory=PoolReport)


@dataclass(frozen=True, slots=True)
class AdoptRequest:
    """What a restarted server knows of a sandbox that should still run."""

    sandbox_id: str
    template: str
    host_secret: str = field(repr=False)
    access_token: str = field(repr=False)
    engine: str = "gvisor"
    resources: Resources | None = None
    paused: bool = False
    """It should be frozen in memory (hot); its absence is no end, its image is on disk."""


@dataclass(frozen=True, slots=True)
class Adoption:
    """The outcome of a restart: who still runs, who ended meanwhile and how, what was reaped."""

    running: tuple[RunningSandbox, ...] = ()
    ended: tuple[SandboxExit, ...] = ()
    reaped: tuple[str, ...] = ()
    paused: tuple[str, ...] = ()


class Node(ABC):
    """Methods raise the AenvError tree; none of them touches the catalog."""

    @abstractmethod
    async def start(
        self, adopt: tuple[AdoptRequest, ...], *, snapshots: frozenset[str] = frozenset()
    ) -> Adoption:
        """Prepare the host, adopt what still runs, destroy what is not in ``adopt``; of stored
        snapshots keep those in ``snapshots``. ``AdoptRequest.paused`` machines stay frozen.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go; sandboxes keep running."""

    async def clear(self) -> bool:
        """After :meth:`close`: remove what the host keeps for a next start. False, and all stays,
        while a sandbox is left.
        """
        return True

    @abstractmethod
    async def info(self) -> NodeInfo: ...

    async def memory(self) -> MemoryReport:
        """What memory is promised to and used for; sandboxes are measured now."""
        return MemoryReport()

    async def space(self) -> list[SpaceUse]:
        """What the bytes in its folders are for."""
        return []

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

    async def note(self, sandbox_id: str, message: str, *, level: str = "info") -> None:
        """Add an event to the sandbox's log."""
        return

    async def has_snapshot(self, snapshot_id: str) -> bool:
        """Whether something can start from it here as it is."""
        return True

    async def store_snapshot(self, snapshot_id: str, blobs: BlobStore) -> Kept:
        """Put it into the blob store; it stays here. Goes on where an earlier attempt ended.

        Raises NotFoundError, SnapshotDamagedError, DiskFullError, EngineError, BlobStoreError.
        """
        raise _no_snapshots()

    async def fetch_snapshot(self, copy: ColdCopy, blobs: BlobStore) -> None:
        """Have it here again; whole or absent. ConflictError when it is here, and as above."""
        raise _no_snapshots()

    async def evict_snapshot(self, snapshot_id: str, *, hot: bool = True) -> bool:
        """Free what it takes here; nothing may start from it meanwhile. Idempotent. ``hot``: also
        if its sandbox is frozen in memory, whose memory is given back then; else False, and it
        stays.
        """
        raise _no_snapshots()

    async def healthy(self, sandbox_id: str) -> bool:
        """Whether the sandbox's agent answers now; False within a few seconds."""
        return True

    @abstractmethod
    def exits(self) -> AsyncIterator[SandboxExit]:
        """Machines that ended by themselves (not through :meth:`destroy`), as it happens."""

    async def settle(self, sandbox_id: str) -> None:
        """Write the guest's dirty data to disk while it runs: a freeze after it is short."""
        raise _no_snapshots()

    async def snapshot(
        self,
        sandbox_id: str,
        snapshot_id: str,
        *,
        memory: bool = True,
        parent: str | None = None,
        thawed: Callable[[], Awaitable[None]] | None = None,
    ) -> SnapshotImage:
        """Keep the sandbox's disk (and memory) of one moment; it runs on. Whole or absent.

        It is frozen for the shortest time; the caller holds its requests meanwhile, until
        ``thawed`` is called. That comes before the image is on disk, and not when it fails earlier.
        Raises DiskFullError (the sandbox runs on), CapabilityError, EngineError.
        """
        raise _no_snapshots()

    async def pause(
        self, sandbox_id: str, snapshot_id: str, *, memory: bool = True, parent: str | None = None
    ) -> SnapshotImage:
        """Freeze the sandbox and keep its image; returns once that is on disk. The node keeps the
        machine frozen in memory (hot) while there is room, unless ``memory`` is False.

        On failure it runs on, but for DiskFullError: then it stays frozen, and :meth:`resume` thaws
        it.
        """
        raise _no_snapshots()

    async def keep(
        self, sandbox_id: str, snapshot_id: str, *, parent: str | None = None
    ) -> SnapshotImage:
        """Keep the image of a sandbox that is paused in memory alone; it stays frozen.

        ConflictError when it is not, DiskFullError while there is no room.
        """
        raise _no_snapshots()

    async def resume(self, spec: SandboxSpec) -> RunningSandbox:
        """Bring back a paused sandbox under its own id, from memory if it is hot, else from
        ``spec.snapshot``. A memory image that cannot be restored is replaced by a boot from its
        disk, and ``note`` says so. The stored snapshot stays until it is deleted.
        """
        raise _no_snapshots()

    async def demote(self, sandbox_id: str) -> bool:
        """Give back the memory of a paused one that is on disk. False if there was none to give."""
        return False

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Free its bytes at once. Idempotent."""
        raise _no_snapshots()

    async def snapshots(self) -> list[SnapshotImage]:
        """All stored ones, with their sizes now."""
        raise _no_snapshots()

    async def verify_snapshot(self, snapshot_id: str) -> None:
        """Compare it with its checksum. Raises EngineError naming what is damaged."""
        raise _no_snapshots()

    async def claim(
        self,
        template: str,
        resources: Resources,
        *,
        snapshot: str | None = None,
        engine: str | None = None,
    ) -> str | None:
        """The id of a machine that waits in the warm pool, now reserved for the :meth:`create` of a
        sandbox of that id; None if there is none. A claim that nobody makes a sandbox of expires,
        and so the machine.
        """
        return None

    async def unclaim(self, sandbox_id: str) -> None:
        """Give back a claim whose id was told to nobody. Idempotent."""
        return

    async def workbench(self, sandbox_id: str) -> Workbench:
        """To build in a sandbox that runs here. NotFoundError."""
        raise CapabilityError("this node builds no templates")

    async def surroundings(self) -> Surroundings:
        """How this host reaches its package registries."""
        return Surroundings()

    async def make_volume(self, volume_id: str, size_mb: int) -> None:
        """A new empty one. CapabilityError where no engine mounts volumes, DiskFullError."""
        raise no_volumes()

    async def drop_volume(self, volume_id: str) -> None:
        """Delete it and all in it. Idempotent; no sandbox may have it."""
        raise no_volumes()

    async def reap_volumes(self, keep: frozenset[str]) -> list[str]:
        """Delete all volumes that are not in ``keep``, nor copies of sandboxes in it."""
        return []

    async def volume_use(self, volume_id: str) -> VolumeUse:
        raise no_volumes()

    async def volume_content(self, volume_id: str) -> VolumeContent:
        """To work on its files. EngineError when it is gone."""
        raise no_volumes()

    @abstractmethod
    async def templates(self) -> list[TemplateInfo]: ...

    @abstractmethod
    async def template_progress(self, name: str) -> TemplateProgress: ...

    @abstractmethod
    async def ensure_template(
        self,
        name: str,
        *,
        wait: float = 0,
        anew: bool = False,
        login: RegistryLogin | None = None,
    ) -> TemplateProgress:
        """Start or join the build of a built-in template, or the pull of an image, and wait up to
        ``wait`` seconds. ``anew``: also if the image is there, as its name may have moved.
        NotFoundError if unknown.
        """

    @abstractmethod
    async def delete_template(self, name: str) -> None:
        """Free a template's files. NotFoundError; ConflictError while sandboxes use it."""


def no_volumes() -> CapabilityError:
    return CapabilityError("volumes need the engine gvisor on this host; see aenv doctor")


def _no_snapshots() -> CapabilityError:
    return CapabilityError("this node takes no snapshots")
