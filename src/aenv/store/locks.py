"""The lock on a data folder: one server per folder. The kernel frees it when the process ends,
however it ends.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from pathlib import Path

from aenv.models.errors import ConflictError
from aenv.store.private import make_private

NAME = "server.lock"


class DataLock:
    """Held from :meth:`acquire` to :meth:`release`."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    @classmethod
    def acquire(cls, data: Path) -> DataLock:
        """Lock ``data`` (made if absent, closed to others). ConflictError names the holder."""
        make_private(data)
        descriptor = os.open(data / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            _lock(descriptor)
        except OSError as error:
            os.close(descriptor)
            holder = owner(data)
            who = f"process {holder['pid']}" if holder else "another process"
            at = f" at {holder['url']}" if holder and holder.get("url") else ""
            raise ConflictError(
                f"the data folder {data} is in use by {who}{at}: use that server, stop it with "
                f"'aenv down', or name another folder with --data"
            ) from error
        lock = cls(descriptor)
        lock.describe(None)
        return lock

    def describe(self, url: str | None) -> None:
        """Write who holds the lock, for the message above and for the CLI."""
        content = json.dumps({"pid": os.getpid(), "url": url}).encode()
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, content, 0)

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _lock(descriptor: int) -> None:
    """Those who only look (:func:`is_locked`) hold the lock for a moment, which must not fail a
    start.
    """
    for pause in (0.01, 0.02, 0.05, 0.1, 0.2):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(pause)
        else:
            return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def owner(data: Path) -> dict[str, object] | None:
    """``{"pid", "url"}`` as last written; says nothing about whether that process still lives."""
    try:
        found = json.loads((data / NAME).read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) and "pid" in found else None


def is_locked(data: Path) -> bool:
    """Whether a server holds ``data`` at the moment."""
    try:
        descriptor = os.open(data / NAME, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)
