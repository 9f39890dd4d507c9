"""Walks over what guests made: its size, taken in the background and answered from memory, and its
removal.
"""

from __future__ import annotations

import itertools
import os
import secrets
import subprocess
import threading
import time
from pathlib import Path

_FRESH_FOR = 10.0
_WALK_TIMEOUT = 600
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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


def remove_tree(folder: Path) -> None:
    """Delete what a guest made, however deep; nothing is followed. A missing folder is no error.

    Folders are emptied one after the other, and their subfolders moved to the top meanwhile:
    neither Python's recursion, nor descriptors, nor the length of a path limits the depth.
    """
    try:
        top = os.open(folder, _FOLDER)
    except FileNotFoundError:
        return
    try:
        mark, count = f".doomed-{secrets.token_hex(8)}", itertools.count()
        while names := _sorted_out(top):
            for name in names:
                inner = os.open(name, _FOLDER, dir_fd=top)
                try:
                    for one in _sorted_out(inner):
                        os.rename(one, f"{mark}-{next(count)}", src_dir_fd=inner, dst_dir_fd=top)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=top)
    finally:
        os.close(top)
    os.rmdir(folder)


def _sorted_out(folder: int) -> list[str]:
    """Unlink all but the subfolders of an open folder; their names."""
    with os.scandir(folder) as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name, dir_fd=folder)
    return [name for name, is_folder in found if is_folder]
