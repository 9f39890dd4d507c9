"""A btrfs in one file of the data folder, for hosts whose data folder is on something else.

The file is allocated in full, never sparse: a sparse one on a full disk would turn read-only and
take every sandbox down. It starts modest and grows in steps, ahead of need and only while the
reserve of the host's disk stays free; it never shrinks. It stays mounted while a disk exists, so a
restart of the server finds it as it was.
"""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

from aenv.models.errors import HostSetupError
from aenv.node.disks.stores import MIB, PoolKind, SubvolumeStore, free_bytes
from aenv.node.engine import Finding, Severity
from aenv.node.host import Host

_INITIAL = 2048 * MIB
_SMALLEST = 256 * MIB
_SMALLEST_STEP = 64 * MIB
_STEP = 1024 * MIB
_GROWTH = 4  # a step is at least a quarter of what is there
_HEADROOM = 1024 * MIB
_LOW_WATER = 192 * MIB
_BUSY, _QUIET = 0.5, 2.0


class LoopStore(SubvolumeStore):
    kind = PoolKind.LOOP

    def __init__(self, data: Path, host: Host, *, most_bytes: int, reserve_bytes: int) -> None:
        super().__init__(data / "pool", host, reserve_bytes)
        self._file = data / "pool.btrfs"
        self._mounts = host.mounts
        self._loops = host.loops
        self._most = most_bytes
        self._growing = threading.Lock()
        self._squeezed: dict[str, int] = {}

    def exists(self) -> bool:
        return self._file.exists()

    def start(self) -> None:
        if not self.exists():
            self._allocate_new()
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        mounted = self._mounts.find(self.root)
        if mounted is not None and not mounted.writable:
            self._mounts.unmount(self.root)
            mounted = None
        if mounted is None:
            self._mount()
        self._require_writable()
        self._volumes.enable_quota(self.root)
        self._fit()

    def room(self) -> int:
        return free_bytes(self.root) + self._growable()

    def tend(self) -> float:
        """Grow ahead of need; when that ends, share what is left."""
        super().tend()
        if self._squeezed:
            self._volumes.sync(self.root)
        free = free_bytes(self.root)
        if free < _HEADROOM and self._growable() >= _SMALLEST_STEP:
            self._grow()
            return _BUSY
        if free < _LOW_WATER:
            self._squeeze()
        elif self._squeezed:
            self._release()
        return _BUSY if free < _HEADROOM else _QUIET

    def stop(self) -> None:
        self._mounts.unmount(self.root)

    def findings(self) -> list[Finding]:
        size = self._file.stat().st_size // MIB
        found = [
            Finding(
                "disk",
                Severity.OK,
                f"disks are btrfs subvolumes in {self._file} ({size} of {self._most // MIB} MiB)",
            )
        ]
        if self.room() < _HEADROOM:
            found.append(
                Finding(
                    "disk",
                    Severity.WARNING,
                    f"all disks together can take {self.room() // MIB} MiB more: {self._bound()}",
                    self._larger(),
                )
            )
        return found

    def _host_bounds(self) -> bool:
        return free_bytes(self._file.parent) - self._reserve < _SMALLEST_STEP

    def _bound(self) -> str:
        if self._host_bounds():
            return f"the host's disk is full, free some space in {self._file.parent}"
        return "the pool has its full size"

    def _larger(self) -> str | None:
        if self._host_bounds():
            return None
        return f"aenv config set pool_mb {2 * self._most // MIB}; aenv down --keep; aenv up"

    def prospect(self) -> Finding:
        """What :meth:`start` will find, or make."""
        if self.exists():
            return Finding("disk", Severity.OK, f"disks are limited, in {self._file}")
        spare = free_bytes(self._file.parent) - self._reserve
        if min(spare, self._most) < _SMALLEST:
            return Finding(
                "disk",
                Severity.WARNING,
                f"{self._file.parent} has {spare // MIB} MiB above the reserve: too little for a "
                f"pool of {_SMALLEST // MIB} MiB, so disks will not be limited; free some space",
            )
        if shutil.which("mkfs.btrfs") is None:
            return Finding("disk", Severity.WARNING, "disks will not be limited without mkfs.btrfs")
        return Finding("disk", Severity.OK, f"disks will be limited, in {self._file}")

    def _allocate_new(self) -> None:
        spare = free_bytes(self._file.parent) - self._reserve
        size = min(_INITIAL, self._most, spare)
        if size < _SMALLEST:
            raise HostSetupError(
                f"{self._file.parent} has {spare // MIB} MiB above the reserve, too little for a "
                f"pool of disks ({_SMALLEST // MIB} MiB). Free some, or lower disk_reserve_mb."
            )
        staged = self._file.with_suffix(".new")
        staged.unlink(missing_ok=True)
        try:
            self._loops.allocate(staged, _aligned(size))
            self._volumes.format(staged)
            staged.replace(self._file)
        finally:
            staged.unlink(missing_ok=True)

    def _mount(self) -> None:
        try:
            with self._loops.attach(self._file) as device:
                # discarding would punch holes into the file
                self._mounts.device(device, self.root, kind="btrfs", options="nodiscard")
        except OSError as error:
            raise HostSetupError(
                f"The pool of disks {self._file} cannot be mounted ({error.strerror}). Look at it "
                f"with: btrfs check --readonly {self._file}; a server without its disks starts "
                f"after: mv {self._file} {self._file}.broken"
            ) from error

    def _require_writable(self) -> None:
        mounted = self._mounts.find(self.root)
        if mounted is None or not mounted.writable:
            raise HostSetupError(
                f"The pool of disks {self._file} met an error and is read-only (see dmesg). "
                f"End all sandboxes (aenv down --kill), then: umount {self.root} && "
                f"btrfs check {self._file}"
            )

    def _fit(self) -> None:
        """Finish a growth that a crash interrupted between the file and the file system."""
        device = self._loops.find(self._file)
        if device is not None:
            self._loops.resized(device)
            self._volumes.grow(self.root)

    def _growable(self) -> int:
        wanted = self._most - self._file.stat().st_size
        return max(0, min(wanted, free_bytes(self._file.parent) - self._reserve))

    def _grow(self) -> None:
        with self._growing:
            size = self._file.stat().st_size
            step = _aligned(min(self._growable(), max(_STEP, size // _GROWTH)))
            if step >= _SMALLEST_STEP:
                self._loops.allocate(self._file, size + step)
                self._fit()

    def _squeeze(self) -> None:
        """The pool is nearly full for good: whoever has more than an even share keeps what it has
        and gets no more, so that the others can go on. Undone when there is room again."""
        names = self.names()
        status = os.statvfs(self.root)
        share = status.f_blocks * status.f_frsize // max(1, len(names))
        for name in names:
            usage = self.usage(name)
            if usage.used_bytes > share and name not in self._squeezed:
                self._volumes.set_limit(self.path(name), usage.used_bytes)
                self._squeezed[name] = usage.limit_bytes

    def _release(self) -> None:
        for name, limit in list(self._squeezed.items()):
            if self._volumes.is_subvolume(self.path(name)):
                self._volumes.set_limit(self.path(name), limit or None)
            del self._squeezed[name]


def _aligned(size: int) -> int:
    return size - size % MIB
