"""What building a template does inside a sandbox: the port, and its models.

Everything here runs in the guest, as a user of the guest; nothing that it is given is looked into
on the host.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field

from aenv.models.errors import EnvironmentFaultError
from aenv.models.templates import GuestFacts


class StepError(EnvironmentFaultError):
    """The guest refuses what a step asks, in its own words: an unknown user, a bad archive."""

    code = "build_step_failed"


@dataclass(frozen=True, slots=True)
class GuestCommand:
    """``command`` for a login shell, or the words of a program. ``cwd`` "": the user's home.
    ``timeout`` in seconds: it is killed then.
    """

    command: str | tuple[str, ...]
    user: str
    cwd: str = ""
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    timeout: float = 3600.0

    @property
    def argv(self) -> tuple[str, ...]:
        if isinstance(self.command, str):
            return ("/bin/bash", "-l", "-c", self.command)
        return self.command


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of what a command wrote, on ``stdout`` or ``stderr``; it may end within a letter."""

    stream: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Ended:
    """``status`` in the guest's words: "exit status 2", "signal: killed"."""

    exit_code: int
    status: str


@dataclass(frozen=True, slots=True)
class CopyTarget:
    """Where the files of a COPY go. ``source``: what was named of the context. ``path``, where it
    is relative, is below the working directory of ``user``; ``owner`` "" means ``user``, "=": as
    archived; ``mode`` is octal, "": as archived.
    """

    source: str
    path: str
    user: str
    owner: str = ""
    mode: str = ""


FOLDER = "/dev/shm/aenv-build"  # noqa: S108 - in guests: a tmpfs that each boot makes anew
APT_CONF, APT_SOURCES, SUITE = "apt.conf", "sources.list", "@SUITE@"


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How a host reaches its package registries, for the builds on it. ``env``: variables of every
    step. ``files``: by name, for :data:`FOLDER`; that of APT's sources names a Debian guest's
    :data:`SUITE`. ``openings``: private targets, as ``ADDRESS/32:PORT``. ``notes``: what builds
    cannot use, and why.
    """

    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    files: Mapping[str, bytes] = field(default_factory=dict, repr=False)
    openings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class Workbench(ABC):
    """All raise StepError, AgentUnreachableError when the sandbox is gone, DiskFullError."""

    @abstractmethod
    def run(self, command: GuestCommand) -> AsyncGenerator[Output | Ended, None]:
        """Its output as it comes; :class:`Ended` is the last."""

    @abstractmethod
    def spawn(self, command: GuestCommand) -> AsyncGenerator[Output | Ended, None]:
        """Start it; it runs on when nobody reads what it writes any more."""

    @abstractmethod
    async def unpack(self, archive: AsyncIterator[bytes], size: int, target: CopyTarget) -> int:
        """Put a tar of ``size`` bytes, gzipped or not, where it belongs; the number of entries."""

    @abstractmethod
    def pack(self, path: str) -> AsyncGenerator[bytes, None]:
        """A gzipped tar of what a path or pattern names, for the ``unpack`` of another sandbox."""

    @abstractmethod
    async def cover(self, path: str, user: str) -> None:
        """Hide what is there behind an empty folder."""

    @abstractmethod
    async def uncover(self, path: str) -> None:
        """Remove the folder, and bring back what it has hidden."""

    @abstractmethod
    async def make_folder(self, path: str, user: str, *, keep: bool = False) -> None:
        """With its parents, and the user's; with ``keep`` one that is there stays whose it is."""

    @abstractmethod
    async def make_user(self, name: str) -> None:
        """An account with a home that may become root, unless it is there."""

    @abstractmethod
    async def write_file(self, path: str, content: bytes) -> None:
        """As root; parents are made."""

    @abstractmethod
    async def declare(self, facts: GuestFacts) -> None:
        """What sandboxes from snapshots of this one are told, instead of what it was told."""
