"""How far a build is, for every process of the host: a lock that the builder holds, and a file.

The lock says whether a build runs, the file how far it is. A file without a holder of the lock is
what a failed or killed build left. The holder removes the lock's file: only a lock that is still in
its place counts.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from aenv.models.templates import PartProgress, TemplateProgress, TemplateStatus
from aenv.node.images.records import write_atomically

_INTERVAL = 0.2
_REMEMBERED = 86400.0
"""Seconds that the reason of a failed build is kept."""


class BuildState:
    """The lock and the progress file of one template."""

    def __init__(self, folder: Path, name: str, key: str | None = None) -> None:
        """``key``: the name as a part of file names, where it differs."""
        self.name = name
        self._lock = folder / f".{key or name}.lock"
        self._file = folder / f".{key or name}.progress"
        self._step = ""
        self._written = 0.0

    @contextmanager
    def hold(self) -> Iterator[bool]:
        """Try to become the builder; False if there is one. The kernel lets go when we die."""
        self._lock.parent.mkdir(parents=True, exist_ok=True)
        mine, descriptor = False, self._open()
        try:
            while (mine := _try_lock(descriptor, fcntl.LOCK_EX)) and not self._is_at(descriptor):
                os.close(descriptor)
                descriptor = self._open()
            yield mine
        finally:
            if mine:
                self._lock.unlink(missing_ok=True)
            os.close(descriptor)

    def is_held(self) -> bool:
        try:
            descriptor = os.open(self._lock, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            return not _try_lock(descriptor, fcntl.LOCK_SH)
        finally:
            os.close(descriptor)

    def report(self, fraction: float, step: str, parts: tuple[PartProgress, ...] = ()) -> None:
        """Write the progress: a few times a second at most, and every new step where there are no
        parts to tell of.
        """
        now = time.monotonic()
        if (step != self._step and not parts) or now - self._written >= _INTERVAL:
            self._step, self._written = step, now
            told = {"fraction": round(min(max(fraction, 0.0), 1.0), 4), "step": step}
            self._write({**told, "parts": [asdict(part) for part in parts]})

    def fail(self, message: str) -> None:
        self._write({**self._read(), "error": message})

    def clear(self) -> None:
        self._file.unlink(missing_ok=True)

    def tidy(self) -> None:
        """Remove what a build left that was killed, or failed long ago."""
        with self.hold() as mine:
            if mine and _is_older(self._file, _REMEMBERED):
                self.clear()

    def read(self) -> TemplateProgress:
        """BUILDING while the lock is held, ERROR after a failure, else ABSENT."""
        held = self.is_held()
        found = self._read()
        error = found.get("error")
        status = (
            TemplateStatus.BUILDING
            if held
            else TemplateStatus.ERROR
            if error
            else TemplateStatus.ABSENT
        )
        return TemplateProgress(
            name=self.name,
            status=status,
            fraction=float(str(found.get("fraction", 0.0)))
            if status is not TemplateStatus.ABSENT
            else 0.0,
            step=str(found.get("step", "")) if status is not TemplateStatus.ABSENT else "",
            error=str(error) if error and not held else None,
            parts=_parts(found.get("parts")) if held else (),
        )

    def _open(self) -> int:
        return os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def _is_at(self, descriptor: int) -> bool:
        """Whether the file is the one that is in its place."""
        try:
            return os.path.samestat(os.fstat(descriptor), self._lock.stat())
        except FileNotFoundError:
            return False

    def _write(self, value: dict[str, object]) -> None:
        write_atomically(self._file, value)

    def _read(self) -> dict[str, object]:
        try:
            value = json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}


def tidy(folder: Path) -> None:
    """As :meth:`BuildState.tidy`, for all of a shelf."""
    files = (*folder.glob(".*.lock"), *folder.glob(".*.progress"))
    for name in {path.stem.removeprefix(".") for path in files}:
        BuildState(folder, name).tidy()


def _is_older(path: Path, seconds: float) -> bool:
    try:
        return time.time() - path.stat().st_mtime > seconds
    except FileNotFoundError:
        return False


def _parts(raw: object) -> tuple[PartProgress, ...]:
    try:
        return tuple(PartProgress(**one) for one in raw) if isinstance(raw, list) else ()
    except TypeError:
        return ()


def _try_lock(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
