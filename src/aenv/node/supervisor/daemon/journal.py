"""The journal: which processes were started under which key and how they ended, for whoever comes
later.
"""

from __future__ import annotations

import json
import os

from . import processes
from .processes import Ending

_LONG = 2000


class Record:
    """One watched process. ``ending`` is None while it runs; ``child`` tells whether its status
    will be ours to read.
    """

    __slots__ = ("child", "console", "ending", "key", "pid", "start")

    def __init__(
        self,
        key: str,
        pid: int,
        start: int | None,
        console: str | None = None,
        ending: Ending | None = None,
    ) -> None:
        self.key = key
        self.pid = pid
        self.start = start
        self.console = console
        self.ending = ending
        self.child = False

    def as_json(self) -> dict[str, object]:
        return {
            "key": self.key,
            "pid": self.pid,
            "start": self.start,
            "console": self.console,
            "ending": self.ending and self.ending.as_json(),
        }


class Journal:
    """Newline JSON, appended; the last line of a key counts. Rewritten when opened or long."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.records = self._replay()
        self._rewrite()

    def write(self, record: Record) -> None:
        self.records[record.key] = record
        self._append(record.as_json())

    def forget(self, key: str) -> None:
        if self.records.pop(key, None) is not None:
            self._append({"key": key, "forgotten": True})

    def _append(self, line: dict[str, object]) -> None:
        """A full run folder must not end the supervisor: memory still knows."""
        try:
            self._file.write(json.dumps(line) + "\n")
            self._file.flush()
            self._lines += 1
            if self._lines > _LONG + 4 * len(self.records):
                self._file.close()
                self._rewrite()
        except (OSError, ValueError) as error:  # ValueError: a rewrite failed and left it closed
            os.write(2, f"journal: {error}\n".encode())

    def _replay(self) -> dict[str, Record]:
        records: dict[str, Record] = {}
        try:
            with open(self.path, encoding="utf-8") as lines:
                stored = [_parse(line) for line in lines]
        except FileNotFoundError:
            return records
        same_boot = bool(stored) and stored[0].get("boot") == processes.boot_id()
        for line in stored:
            key = line.get("key")
            if not isinstance(key, str):
                continue
            if line.get("forgotten"):
                records.pop(key, None)
                continue
            record = _record(key, line)
            if record.ending is None and not (
                same_boot and processes.alive(record.pid, record.start)
            ):
                record.ending = Ending()
            records[key] = record
        return records

    def _rewrite(self) -> None:
        partial = self.path + ".new"
        with open(partial, "w", encoding="utf-8") as file:
            file.write(json.dumps({"boot": processes.boot_id()}) + "\n")
            file.writelines(json.dumps(record.as_json()) + "\n" for record in self.records.values())
        os.chmod(partial, 0o600)
        os.replace(partial, self.path)
        self._lines = len(self.records)
        self._file = open(self.path, "a", encoding="utf-8")  # noqa: SIM115  held from now on


def _record(key: str, line: dict[str, object]) -> Record:
    pid, start, console, ending = (line.get(name) for name in ("pid", "start", "console", "ending"))
    return Record(
        key,
        pid if isinstance(pid, int) else 0,
        start if isinstance(start, int) else None,
        console if isinstance(console, str) else None,
        Ending(ending.get("code"), ending.get("signal")) if isinstance(ending, dict) else None,
    )


def _parse(line: str) -> dict[str, object]:
    """A line torn by a crash counts as absent."""
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
