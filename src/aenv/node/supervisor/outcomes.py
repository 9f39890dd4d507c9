"""What the supervisor tells of processes."""

from __future__ import annotations

from dataclasses import dataclass

from aenv.models.errors import EngineError


class SupervisorLostError(EngineError):
    """The supervisor ended while it owed us an answer; a new one is being started."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a process ended; both None: it ended while nobody could read its status."""

    code: int | None = None
    signal: int | None = None


@dataclass(frozen=True, slots=True)
class RunResult:
    code: int | None
    signal: int | None
    stdout: bytes
    stderr: bytes
    truncated: bool
    timed_out: bool

    @property
    def ok(self) -> bool:
        return self.code == 0


@dataclass(frozen=True, slots=True)
class Record:
    """A watched process. ``ending`` is None while it runs."""

    key: str
    pid: int
    ending: Ending | None
