"""Disks as plain folders, where there is no btrfs."""

from __future__ import annotations

import errno
import subprocess
from pathlib import Path

from aenv.node.disks.disk import DiskUsage
from aenv.node.disks.removals import remove_tree
from aenv.node.disks.stores import ImageUsage, PoolKind, Store, free_bytes
from aenv.node.disks.walks import FolderSizes
from aenv.node.engine import Finding, Severity

_COPY_TIMEOUT = 1800
_SYNC_TIMEOUT = 600


class FolderStore(Store):
    """The last resort: nothing stops one sandbox from filling the host's disk."""

    kind = PoolKind.DIRECTORY

    def __init__(self, root: Path, reserve_bytes: int, reason: str = "") -> None:
        self.root = root
        self._reserve = reserve_bytes
        self._reason = reason
        self._sizes = FolderSizes()

    def start(self) -> None:
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        for pattern in (".new-*", ".volumes/.new-*", ".images/.new-*", ".images/.dropped-*"):
            for leftover in self.root.glob(pattern):
                remove_tree(leftover)

    def make(self, name: str, limit_bytes: int) -> Path:
        self.path(name).mkdir(mode=0o700)
        return self.path(name)

    def remove(self, name: str) -> None:
        self._sizes.forget(self.path(name))
        remove_tree(self.path(name))

    def usage(self, name: str) -> DiskUsage:
        return DiskUsage(self._sizes.of(self.path(name)), 0)

    def sync(self, name: str) -> None:
        _sync(self.path(name))

    def save(self, name: str, image: str) -> None:
        target = self.image_path(image)
        target.parent.mkdir(mode=0o700, exist_ok=True)
        self._copy(self.path(name), target)
        _sync(target)

    def make_from(self, image: str, name: str, limit_bytes: int) -> Path:
        self._copy(self.image_path(image), self.path(name))
        return self.path(name)

    def image_usage(self, image: str) -> ImageUsage:
        """Without a count of what is shared, all counts as its own."""
        size = self._sizes.of(self.image_path(image))
        return ImageUsage(size, size)

    def drop(self, image: str) -> None:
        path, doomed = self.image_path(image), self.image_path(f".dropped-{image}")
        self._sizes.forget(path)
        if path.exists():
            path.rename(doomed)
        remove_tree(doomed)

    def _copy(self, source: Path, target: Path) -> None:
        """Whole or absent. Where the file system can, the bytes are shared."""
        if target.exists():
            raise FileExistsError(errno.EEXIST, "it exists", str(target))
        if not source.is_dir():
            raise FileNotFoundError(errno.ENOENT, "it is gone", str(source))
        partial = target.with_name(f".new-{target.name}")
        remove_tree(partial)
        command = ["cp", "-a", "--reflink=auto", "--", str(source), str(partial)]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=_COPY_TIMEOUT
            )
            if done.returncode != 0:
                full = "No space left" in done.stderr or "quota exceeded" in done.stderr
                raise OSError(errno.ENOSPC if full else errno.EIO, done.stderr.strip()[-300:])
            partial.rename(target)
        finally:
            remove_tree(partial)

    def room(self) -> int:
        return free_bytes(self.root) - self._reserve

    def findings(self) -> list[Finding]:
        because = f" ({self._reason})" if self._reason else ""
        if self.holds_any():
            because += "; it stays so while a sandbox or a snapshot is there at the server's start"
        return [
            Finding(
                "disk",
                Severity.WARNING,
                f"disks are plain folders in {self.root}: diskSizeMB is not enforced and one "
                f"sandbox can fill the disk of all{because}",
                "apt-get install -y btrfs-progs; modprobe -a btrfs loop; aenv down --keep; aenv up",
            )
        ]


def _sync(folder: Path) -> None:
    """Write all that is dirty in the file system of ``folder``."""
    subprocess.run(["sync", "-f", str(folder)], check=True, timeout=_SYNC_TIMEOUT)
