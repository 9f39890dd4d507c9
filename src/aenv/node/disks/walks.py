"""The size of a folder that no quota counts: walked in the background, answered from memory."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

_FRESH_FOR = 10.0
_BLOCK = 512


class FolderSizes:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Path, tuple[float, int]] = {}
        self._walking: set[Path] = set()

    def of(self, folder: Path) -> int:
        """The last known size in bytes (0 at first); an old one starts a walk."""
        with self._lock:
            measured, size = self._known.get(folder, (0.0, 0))
            stale = time.monotonic() - measured > _FRESH_FOR or not measured
            if stale and folder not in self._walking:
                self._walking.add(folder)
                threading.Thread(
                    target=self._walk, args=(folder,), name="aenv-du", daemon=True
                ).start()
            return size

    def forget(self, folder: Path) -> None:
        with self._lock:
            self._known.pop(folder, None)

    def _walk(self, folder: Path) -> None:
        size = tree_size(folder)
        with self._lock:
            self._walking.discard(folder)
            self._known[folder] = (time.monotonic(), size)


def tree_size(folder: Path) -> int:
    """Bytes allocated by regular files and folders; hard links count once."""
    seen: set[tuple[int, int]] = set()
    total = 0
    for parent, folders, files in os.walk(folder, onerror=None):
        for name in (*folders, *files):
            try:
                status = os.lstat(os.path.join(parent, name))
            except OSError:
                continue
            if status.st_nlink > 1 and (status.st_dev, status.st_ino) in seen:
                continue
            seen.add((status.st_dev, status.st_ino))
            total += status.st_blocks * _BLOCK
    return total
