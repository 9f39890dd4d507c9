"""The engine port: what can boot a machine, and what a machine can do.

Every engine declares its capabilities; a request that needs one that is absent is refused by the
caller of the port with :class:`~aenv.models.errors.CapabilityError`. Isolation is never weakened
silently. All engines pass one conformance suite (``tests/conformance``); what an engine declares
absent is skipped there by declaration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from aenv.models.errors import CapabilityError
from aenv.models.sandboxes import NetworkPolicy, Resources, SandboxExit
from aenv.models.volumes import VolumeMount
from aenv.node.volumes.store import VolumeStore


class Isolation(StrEnum):
    """NONE: the host's kernel and files. KERNEL: a user-space kernel of its own. VM: hardware
    virtualisation.
    """

    NONE = "none"
    KERNEL = "kernel"
    VM = "vm"


@dataclass(frozen=True, slots=True)
class Capabilities:
    engine: str
    isolation: Isolation
    needs_root: bool
    needs_kvm: bool = False
    limits: bool = False
    network_isolation: bool = False
    egress_policy: bool = False
    orphan_control: bool = False
    freeze: bool = False
    memory_snapshot: bool = False
    live_fork: bool = False
    disk_snapshot: bool = False
    volumes: bool = False


class Severity(StrEnum):
    OK = "ok"
    WARNING = "warning"
    MISSING = "missing"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of ``aenv doctor``: what was looked at, what was found, and the command that mends
    it.
    """

    topic: str
    severity: Severity
    summary: str
    fix: str | None = None


@dataclass(frozen=True, slots=True)
class Bind:
    """A host path seen in the guest. ``target`` is absolute in the guest; created in the upper
    where missing.
    """

    source: Path
    target: str
    read_only: bool = True


@dataclass(frozen=True, slots=True)
class Rootfs:
    """Read-only lower directories, topmost first (already mounted on the host), and extra binds."""

    lowers: tuple[Path, ...]
    binds: tuple[Bind, ...] = ()


@dataclass(frozen=True, slots=True)
class DiskImage:
    """A kept copy of what a machine had written, by the engine's name for it. Machines may start
    from it, each with a copy of its own; it never changes.
    """

    name: str
    bytes: int
    own_bytes: int


@dataclass(frozen=True, slots=True)
class MachineSpec:
    """Everything an engine needs to boot one machine.

    ``agent`` is the host path of the static agent binary, ``agent_env`` the environment of the
    agent itself (it holds only the *hash* of the host secret, see ``agent/README.md``).
    ``hostname`` is the guest's. ``host_ca``: make the host's CA bundle visible read-only at
    ``/.aenv/ca.crt``. ``disk``: start from this copy instead of an empty disk. ``same_life``
    (restore): the same sandbox goes on and keeps its boot id; else it gets a new one.
    """

    sandbox_id: str
    rootfs: Rootfs
    resources: Resources
    network: NetworkPolicy
    hostname: str
    agent: Path
    agent_env: dict[str, str] = field(default_factory=dict)
    host_ca: bool = False
    disk: DiskImage | None = None
    same_life: bool = False
    volumes: tuple[VolumeMount, ...] = ()


@dataclass(frozen=True, slots=True)
class Address:
    """A TCP address that can be dialled from the host."""

    host: str
    port: int


@dataclass(frozen=True, slots=True)
class GuestNetwork:
    """What a guest with a network of its own is told: its address and the resolver to ask."""

    address: str
    nameservers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExecResult:
    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class MachineStats:
    """Host-side figures: bytes, and CPU seconds used since boot."""

    cpu_seconds: float
    memory_bytes: int
    processes: int
    disk_used_bytes: int
    disk_limit_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryImage:
    """A checkpoint, a folder on local disk, and the fingerprint of what can restore it. It holds
    all that a restore needs beside the disk, so that an update of the server takes nothing away.
    """

    path: Path
    engine: str
    engine_version: str
    cpu_features: str = ""


class Machine(ABC):
    """One booted machine. Methods raise EngineError; after the machine died they raise it with the
    exit's reason.
    """

    sandbox_id: str

    @abstractmethod
    def address(self, port: int) -> Address:
        """Where guest ``port`` can be dialled from the host (AGENT_PORT: the agent)."""

    @property
    def guest_network(self) -> GuestNetwork | None:
        """None: the guest shares the host's network and resolver files."""
        return None

    @abstractmethod
    async def wait(self) -> SandboxExit:
        """Return when the machine has ended; may be awaited by many and after the fact."""

    @abstractmethod
    async def exec(self, argv: Sequence[str], *, timeout: float = 30) -> ExecResult:
        """Run a program as the guest's root through the engine, without the agent."""

    @abstractmethod
    async def freeze(self) -> None: ...

    @abstractmethod
    async def thaw(self) -> None: ...

    @abstractmethod
    async def checkpoint(self, destination: Path) -> MemoryImage:
        """Write the memory image of a frozen machine into ``destination`` (must not exist). It
        stays frozen. Making the files durable is the caller's part. Raises DiskFullError.
        """

    @property
    def frozen(self) -> bool:
        """Also of an adopted machine, whenever the server before died."""
        return False

    async def sync(self) -> None:
        """Write what is dirty of its disk while it runs, so that :meth:`save_disk` is short."""
        raise _no_disks()

    async def save_disk(self, name: str, *, volumes: bool = False) -> DiskImage:
        """Keep a copy of its disk, durably and under a new ``name``, and with ``volumes`` of those
        it may write to. A machine that is not frozen may write meanwhile. Raises ConflictError (the
        name is taken), DiskFullError.
        """
        raise _no_disks()

    @abstractmethod
    async def stats(self) -> MachineStats: ...

    async def memory_used(self) -> int:
        """Bytes of the host's memory, frozen or not; as in :meth:`stats`, for less."""
        return (await self.stats()).memory_bytes

    @abstractmethod
    async def set_network(self, policy: NetworkPolicy) -> None: ...

    @abstractmethod
    async def destroy(self) -> None:
        """End it and remove every trace: processes, mounts, netns, cgroups, files. Idempotent."""


class Engine(ABC):
    """A way of making machines on this host, for one server instance."""

    capabilities: Capabilities

    @property
    def memory_format(self) -> str:
        """A comparable word for what can restore the memory images made now; empty without any."""
        return ""

    @abstractmethod
    async def probe(self) -> list[Finding]:
        """What this engine needs of the host and whether it is there. Changes nothing."""

    @abstractmethod
    async def start(self) -> None:
        """Make what all machines share (run folders, nft table, supervisor…). Raises
        HostSetupError.
        """

    @abstractmethod
    async def close(self) -> None:
        """Let go without harming running machines (the server may come back and adopt them)."""

    @property
    def volumes(self) -> VolumeStore | None:
        """Where volumes for its machines are kept, while it is started; None: it has none."""
        return None

    async def disk_room(self) -> int | None:
        """Bytes its machines' disks may still take, beyond any reserve; None: they are the host's
        own files.
        """
        return None

    @abstractmethod
    async def boot(self, spec: MachineSpec) -> Machine:
        """Boot and return once the machine runs (the agent may still be starting). Leaves nothing
        behind on failure. Raises SnapshotDamagedError when the disk to start from is gone.
        """

    @abstractmethod
    async def restore(self, spec: MachineSpec, image: MemoryImage) -> Machine:
        """As :meth:`boot`, but from memory; the disk must be of the same moment. Raises
        ImageUnusableError when this host cannot restore the image, EngineError when it failed to.
        """

    async def disk_images(self) -> list[DiskImage]:
        """All copies that were kept, with their sizes now."""
        return []

    async def drop_disk(self, name: str) -> None:
        """Delete a kept copy and free its bytes. Idempotent; machines made from it live on."""
        raise _no_disks()

    async def disk_tree(self, name: str) -> Path:
        """Where a kept copy's changes over its layers are, as an overlay's upper. NotFoundError."""
        raise _no_disks()

    async def verify_disk(self, name: str) -> None:
        """Read all of a kept copy. Raises EngineError naming what cannot be read."""
        raise _no_disks()

    @abstractmethod
    async def adopt(self, sandbox_id: str) -> Machine:
        """Take over a machine that outlived the server. One that died meanwhile is returned too,
        its exit known.
        """

    @abstractmethod
    async def reap(self, keep: frozenset[str]) -> list[str]:
        """Destroy every machine and leftover of this instance that is not in ``keep``; return their
        ids.
        """


def _no_disks() -> CapabilityError:
    return CapabilityError("this engine keeps no copies of disks; use gvisor")
