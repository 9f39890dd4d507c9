"""One sandbox's log on disk: a folder of JSONL segments, bounded by dropping the oldest.

``seq`` counts what was kept here; ``agent_seq`` is the agent's own count, from which pulling
resumes after a restart. Blocking; one lock per log, for a reader and a writer in different threads.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aenv.models.sandboxes import LogEntry

# The agent cuts messages at 16 KiB; JSON escapes make at most six bytes of one.
_LONGEST_LINE = 256 * 1024
_FIELDS = frozenset({"seq", "agent", "timestamp", "stream", "level", "message", "fields"})
_SEVERITY = {"debug": 0, "info": 1, "warn": 2, "warning": 2, "error": 3}


@dataclass(frozen=True, slots=True)
class LogLine:
    """An entry before it has a ``seq``. ``agent_seq`` is 0 for what the node itself has to say."""

    timestamp: float
    stream: str
    level: str
    message: str
    fields: dict[str, str]
    agent_seq: int = 0


@dataclass(frozen=True, slots=True)
class LogQuery:
    """``level``: the least severity. ``start``: unix seconds, the upper bound if descending."""

    after: int = 0
    limit: int = 1000
    descending: bool = False
    level: str | None = None
    search: str | None = None
    start: float | None = None

    def wants(self, entry: LogEntry) -> bool:
        if self.after and self.descending and entry.seq >= self.after:
            return False
        if not self.descending and entry.seq <= self.after:
            return False
        if self.start is not None:
            late = entry.timestamp > self.start
            if entry.timestamp != self.start and late == self.descending:
                return False
        if self.level is not None and _severity(entry.level) < _severity(self.level):
            return False
        return self.search is None or self.search in entry.message


@dataclass(slots=True)
class _Segment:
    path: Path
    first: int
    last: int
    size: int


class LogFiles:
    """The log of one sandbox under ``folder``; opening it mends a torn tail."""

    def __init__(self, folder: Path, *, budget: int, segment_bytes: int) -> None:
        self._folder = folder
        self._budget = budget
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        self._segments: list[_Segment] = []
        self.last_seq = 0
        self.last_agent_seq = 0
        self.written_at = 0.0
        self._recover()

    @property
    def size(self) -> int:
        return sum(segment.size for segment in self._segments)

    def append(self, lines: Iterable[LogLine]) -> None:
        """Write ``lines``. On OSError (disk full) what did not fit is lost, but not the log."""
        with self._lock:
            for batch in self._batches(lines):
                self._write(*batch)
            while self.size > self._budget and len(self._segments) > 1:
                self._drop_oldest()
            self.written_at = time.time()

    def skip(self, lines: Iterable[LogLine]) -> None:
        """Count lines that could not be written as seen, so that pulling goes on behind them."""
        with self._lock:
            seen = max((line.agent_seq for line in lines), default=0)
            self.last_agent_seq = max(self.last_agent_seq, seen)

    def drop_oldest(self) -> int:
        """Free the oldest segment; returns its bytes, 0 when there is none."""
        with self._lock:
            return self._drop_oldest() if self._segments else 0

    def query(self, query: LogQuery) -> list[LogEntry]:
        with self._lock:
            segments = [(segment.path, segment.first, segment.last) for segment in self._segments]
        if query.descending:
            segments.reverse()
        found: list[LogEntry] = []
        for path, first, last in segments:
            below, above = query.after and first >= query.after, last <= query.after
            if below if query.descending else above:
                continue
            entries = _read(path)
            for entry in reversed(entries) if query.descending else entries:
                if query.wants(entry):
                    found.append(entry)
                    if len(found) >= query.limit:
                        return found
        return found

    def remove(self) -> None:
        with self._lock:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._segments.clear()

    def _batches(self, lines: Iterable[LogLine]) -> Iterator[tuple[int, int, bytes]]:
        """Encoded lines, grouped so that no segment grows far beyond its size."""
        encoded = bytearray()
        first = seq = self.last_seq + 1
        for line in lines:
            self.last_seq = seq
            self.last_agent_seq = max(self.last_agent_seq, line.agent_seq)
            encoded += _encode(seq, self.last_agent_seq, line)
            seq += 1
            if len(encoded) >= self._segment_bytes:
                yield first, seq - 1, bytes(encoded)
                encoded.clear()
                first = seq
        if encoded:
            yield first, seq - 1, bytes(encoded)

    def _write(self, first: int, last: int, encoded: bytes) -> None:
        segment = self._segments[-1] if self._segments else None
        if segment is None or segment.size + len(encoded) > self._segment_bytes:
            self._folder.mkdir(parents=True, exist_ok=True)
            segment = _Segment(self._folder / f"{first:012d}.jsonl", first, first, 0)
            self._segments.append(segment)
        with segment.path.open("ab", buffering=0) as file:
            try:
                if file.write(encoded) != len(encoded):
                    raise OSError(28, "the disk is full", str(segment.path))
            except OSError:
                with contextlib.suppress(OSError):
                    file.truncate(segment.size)
                raise
        segment.last = last
        segment.size += len(encoded)

    def _drop_oldest(self) -> int:
        segment = self._segments.pop(0)
        segment.path.unlink(missing_ok=True)
        return segment.size

    def _recover(self) -> None:
        paths = sorted(self._folder.glob("*.jsonl")) if self._folder.is_dir() else []
        for path in paths:
            _mend_tail(path)
            ends = _ends(path)
            if ends is None:
                path.unlink(missing_ok=True)
                continue
            first, last = ends
            status = path.stat()
            self._segments.append(_Segment(path, first["seq"], last["seq"], status.st_size))
            self.written_at = status.st_mtime
            self.last_seq = last["seq"]
            self.last_agent_seq = max(self.last_agent_seq, last["agent"])


def _severity(level: str) -> int:
    return _SEVERITY.get(level.lower(), 1)


def _encode(seq: int, agent_seq: int, line: LogLine) -> bytes:
    """``agent`` is the highest of the agent's counts so far, so that the last line tells it."""
    found = {
        "seq": seq,
        "agent": agent_seq,
        "timestamp": line.timestamp,
        "stream": line.stream,
        "level": line.level,
        "message": line.message,
        "fields": line.fields,
    }
    return json.dumps(found, separators=(",", ":")).encode() + b"\n"


def _read(path: Path) -> list[LogEntry]:
    """All entries of a segment; empty when it was dropped meanwhile."""
    try:
        lines = path.read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = [line for line in map(_decode, lines) if line is not None]
    return [
        LogEntry(
            seq=line["seq"],
            timestamp=line["timestamp"],
            stream=line["stream"],
            message=line["message"],
            level=line["level"],
            fields=line["fields"],
        )
        for line in found
    ]


def _decode(line: bytes) -> dict[str, Any] | None:
    """None for a line that is cut or spoilt."""
    try:
        found: dict[str, Any] = json.loads(line)
        return found if found.keys() >= _FIELDS else None
    except (ValueError, AttributeError):
        return None


def _mend_tail(path: Path) -> None:
    """Cut what a crash left after the last newline."""
    with path.open("r+b") as file:
        size = file.seek(0, os.SEEK_END)
        start = max(0, size - _LONGEST_LINE)
        file.seek(start)
        tail = file.read()
        if not tail.endswith(b"\n"):
            file.truncate(start + tail.rfind(b"\n") + 1)


def _ends(path: Path) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The first and the last line of a segment; None when it has none."""
    with path.open("rb") as file:
        first = _decode(file.readline(_LONGEST_LINE))
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - _LONGEST_LINE))
        lines = file.read().splitlines()
    last = _decode(lines[-1]) if lines else None
    return (first, last) if first and last else None
