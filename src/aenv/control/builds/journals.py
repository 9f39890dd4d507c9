"""The logs of builds: one file each, a line of JSON per entry, bounded."""

from __future__ import annotations

import asyncio
import codecs
import json
from dataclasses import dataclass
from pathlib import Path

from aenv.control.clocks import Clock

LEVELS = ("debug", "info", "warn", "error")
MOST_BYTES = 8 * 2**20
LONGEST_LINE = 4096
_RESERVE = 64 * 1024
"""Bytes kept for what is said of a build that has filled its log."""


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """``timestamp`` in nanoseconds; ``step``: "base", a number from 1, or "finalize"."""

    timestamp: int
    level: str
    message: str
    step: str | None = None


class Journal:
    """The log of a build that runs. Writes are small and go to the page cache."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self._path = path
        self._clock = clock
        self._written = path.stat().st_size if path.exists() else 0
        self._full = False

    def say(self, message: str, *, level: str = "info", step: str | None = None) -> None:
        """Never fails: a full disk ends the build elsewhere."""
        entry = [self._clock.wall(), level, message[:LONGEST_LINE], step]
        line = json.dumps(entry) + "\n"
        bound = MOST_BYTES if level != "error" else MOST_BYTES + _RESERVE
        if self._written + len(line) > bound:
            if self._full:
                return
            self._full = True
            line = json.dumps([entry[0], "warn", "the log is full; the build goes on", step]) + "\n"
        try:
            with self._path.open("a") as file:
                file.write(line)
        except OSError:
            return
        self._written += len(line)


class Lines:
    """What a command writes, line by line into a journal. ``prefix`` begins each."""

    def __init__(self, journal: Journal, step: str, prefix: str, level: str) -> None:
        self._journal = journal
        self._step = step
        self._prefix = prefix
        self._level = level
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._open = ""

    def write(self, data: bytes) -> None:
        *lines, self._open = (self._open + self._decoder.decode(data)).split("\n")
        for line in lines:
            self._say(line)
        if len(self._open) > LONGEST_LINE:
            self._say(self._open)
            self._open = ""

    def close(self) -> None:
        if rest := self._open + self._decoder.decode(b"", final=True):
            self._say(rest)
        self._open = ""

    def _say(self, line: str) -> None:
        """What overwrote itself on a terminal counts as its last state."""
        text = line.rstrip("\r").rpartition("\r")[2]
        if text.strip():
            self._journal.say(self._prefix + text, level=self._level, step=self._step)


class Journals:
    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder = folder
        self._clock = clock

    def open(self, build_id: str) -> Journal:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return Journal(self._place(build_id), self._clock)

    async def read(self, build_id: str, *, level: str | None = None) -> list[JournalEntry]:
        """In order; those of ``level`` or worse."""
        entries = await asyncio.to_thread(_read, self._place(build_id))
        least = LEVELS.index(level) if level in LEVELS else 0
        return [one for one in entries if LEVELS.index(one.level) >= least]

    async def remove(self, build_id: str) -> None:
        await asyncio.to_thread(self._place(build_id).unlink, missing_ok=True)

    async def keep_only(self, build_ids: frozenset[str]) -> None:
        def sweep() -> None:
            for path in self._folder.glob("*.jsonl") if self._folder.is_dir() else ():
                if path.stem not in build_ids:
                    path.unlink(missing_ok=True)

        await asyncio.to_thread(sweep)

    def _place(self, build_id: str) -> Path:
        return self._folder / f"{build_id}.jsonl"


def _read(path: Path) -> list[JournalEntry]:
    if not path.exists():
        return []
    found = []
    for line in path.read_text().splitlines():
        try:
            found.append(JournalEntry(*json.loads(line)))
        except (ValueError, TypeError):  # the server was killed while it wrote this line
            continue
    return found
