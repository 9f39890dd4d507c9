"""The privileged boundary: what needs root on the host, as one abstract class per kind of thing.

Nothing else in the code base mounts, makes namespaces, loads firewall rules or talks to btrfs. A
mode without root (a user namespace of our own) is another implementation of these classes, not a
change of their callers.

All methods block, for microseconds to seconds: call them in a worker thread. They raise
HostSetupError when the host lacks something (message = cause and remedy) and OSError for what the
kernel refuses.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any, NamedTuple

from aenv.node.engine import Finding


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of the mount table."""

    source: str
    target: Path
    kind: str
    options: str

    @property
    def writable(self) -> bool:
        """Whether the file system takes writes; one that met an error may have stopped to."""
        return "ro" not in self.options.split(",")


class Mounts(ABC):
    @abstractmethod
    def overlay(
        self, lowers: Sequence[Path], upper: Path | None, work: Path | None, target: Path
    ) -> None:
        """Stack ``lowers`` (topmost first) under ``upper``; read-only when it is None."""

    @abstractmethod
    def image(self, source: Path, target: Path, *, kind: str = "erofs") -> None:
        """Mount a read-only file system image, straight from the file or through a loop device."""

    @abstractmethod
    def device(self, source: Path, target: Path, *, kind: str, options: str = "") -> None:
        """Mount a block device read-write."""

    @abstractmethod
    def bind(self, source: Path, target: Path, *, read_only: bool = True) -> None: ...

    @abstractmethod
    def unmount(self, target: Path) -> bool:
        """Unmount all that is stacked on ``target``, lazily if busy. False if nothing was."""

    @abstractmethod
    def table(self) -> list[Mount]: ...

    def find(self, target: Path) -> Mount | None:
        """What is mounted exactly on ``target`` (the topmost)."""
        return next((mount for mount in reversed(self.table()) if mount.target == target), None)


class LoopDevices(ABC):
    @abstractmethod
    def attach(self, file: Path, *, read_only: bool = False) -> AbstractContextManager[Path]:
        """A loop device over ``file`` (the one that exists, if any).

        It goes with its last user: mount it inside the ``with`` block.
        """

    @abstractmethod
    def find(self, file: Path) -> Path | None: ...

    @abstractmethod
    def allocate(self, file: Path, size: int) -> None:
        """Make ``file`` ``size`` bytes long with every block allocated; on failure as it was."""

    @abstractmethod
    def resized(self, device: Path) -> None:
        """Tell the kernel that the file behind ``device`` has grown."""


@dataclass(frozen=True, slots=True)
class VolumeUsage:
    """Bytes a subvolume refers to, not yet written ones included, its limit (0 = none), and what
    nothing else refers to.
    """

    used: int
    limit: int
    own: int = 0


class Volumes(ABC):
    """btrfs: file systems, subvolumes, quotas."""

    @abstractmethod
    def is_btrfs(self, path: Path) -> bool: ...

    @abstractmethod
    def format(self, file: Path) -> None:
        """Make a btrfs in a file, without punching holes into it."""

    @abstractmethod
    def enable_quota(self, path: Path) -> None: ...

    @abstractmethod
    def create(self, path: Path) -> None: ...

    @abstractmethod
    def delete(self, path: Path) -> None:
        """Delete a subvolume and its quota group. The space comes back in the background."""

    @abstractmethod
    def snapshot(self, source: Path, target: Path, *, read_only: bool) -> None:
        """A copy of a subvolume that shares its bytes, on disk when this returns."""

    @abstractmethod
    def is_subvolume(self, path: Path) -> bool: ...

    @abstractmethod
    def set_limit(self, path: Path, limit: int | None) -> None: ...

    @abstractmethod
    def usage(self, path: Path) -> VolumeUsage: ...

    @abstractmethod
    def sync(self, path: Path) -> None:
        """Commit what was changed, so that freed space counts."""

    @abstractmethod
    def grow(self, mount: Path) -> None:
        """Grow the file system to the size of its device."""


class Route(NamedTuple):
    network: IPv4Network
    interface: str


class Links(ABC):
    """Network namespaces, interfaces, addresses, routes, connection tracking."""

    @abstractmethod
    def netns_path(self, name: str) -> Path: ...

    @abstractmethod
    def netns_create(self, name: str) -> None: ...

    @abstractmethod
    def netns_remove(self, name: str) -> None: ...

    @abstractmethod
    def netns_list(self, prefix: str) -> list[str]: ...

    @abstractmethod
    def veth_create(self, name: str, netns: str, address: IPv4Interface) -> None:
        """A pair: ``name`` on the host, hardened, with ``address``; a bare eth0 in ``netns``."""

    @abstractmethod
    def veth_remove(self, name: str) -> None: ...

    @abstractmethod
    def veth_list(self, prefix: str) -> list[str]: ...

    @abstractmethod
    def bridges(self) -> list[str]:
        """Bridges on this host (containers and virtual machines of others)."""

    @abstractmethod
    def guest_configure(self, netns: str, address: IPv4Interface, gateway: str) -> None:
        """In ``netns``: ``lo`` up, ``eth0`` up with ``address`` and a default route. Idempotent."""

    @abstractmethod
    def routes(self) -> list[Route]:
        """The host's IPv4 routes but the default one."""

    @abstractmethod
    def forget_connections(self, guest: str, keep: Callable[[str, int], bool] | None = None) -> int:
        """Drop tracked connections ``guest`` opened, but those ``keep(peer, port)`` says yes to."""


class Firewall(ABC):
    @abstractmethod
    def load(self, script: str) -> None:
        """Run an nft script as one transaction."""

    @abstractmethod
    def tables(self) -> list[str]:
        """Family and name of every table."""

    @abstractmethod
    def has_legacy_rules(self) -> bool:
        """Whether iptables of the old kind filters packets; nft does not show its rules."""

    @abstractmethod
    def changes(self) -> AbstractContextManager[socket.socket]:
        """A non-blocking socket that has something to read when somebody changes the ruleset."""

    @abstractmethod
    def ruleset(self) -> list[dict[str, Any]]:
        """The whole ruleset as nft's JSON objects."""


class Kernel(ABC):
    """Switches and identity of the running kernel."""

    @abstractmethod
    def boot_id(self) -> str: ...

    @abstractmethod
    def ip_forward(self) -> bool: ...

    @abstractmethod
    def set_ip_forward(self, enabled: bool) -> None: ...


class Host(ABC):
    """One host's privileged operations, for one server instance."""

    mounts: Mounts
    loops: LoopDevices
    volumes: Volumes
    links: Links
    firewall: Firewall
    kernel: Kernel

    @abstractmethod
    def findings(self) -> list[Finding]:
        """What of the above this host cannot do. Changes nothing."""

    @abstractmethod
    def close(self) -> None: ...
