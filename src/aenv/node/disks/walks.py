"""The size of what guests made, taken in the background and answered from memory."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

_FRESH_FOR = 10.0
_WALK_TIMEOUT = 600


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
    """Bytes allocated to files and folders on this file system; hard links count once."""
    found = subprocess.run(
        ["du", "-skx", "--", str(folder)],
        check=False,  # it complains of what vanishes while it looks
        capture_output=True,
        timeout=_WALK_TIMEOUT,
    )
    size, _, _ = found.stdout.partition(b"\t")
    return int(size) * 1024 if size.isdigit() else 0
