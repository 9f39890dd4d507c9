"""What a running command tells: started, output, ended."""

from __future__ import annotations

import signal as signals
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal

StreamName = Literal["stdout", "stderr", "pty"]
OutputCallback = Callable[[str], Awaitable[None] | None]
"""Called with decoded output as it comes; may be a coroutine function."""

_SIGNAL_WORDS = {
    "hangup": signals.SIGHUP,
    "interrupt": signals.SIGINT,
    "quit": signals.SIGQUIT,
    "illegal instruction": signals.SIGILL,
    "trace/breakpoint trap": signals.SIGTRAP,
    "aborted": signals.SIGABRT,
    "bus error": signals.SIGBUS,
    "floating point exception": signals.SIGFPE,
    "killed": signals.SIGKILL,
    "user defined signal 1": signals.SIGUSR1,
    "segmentation fault": signals.SIGSEGV,
    "user defined signal 2": signals.SIGUSR2,
    "broken pipe": signals.SIGPIPE,
    "alarm clock": signals.SIGALRM,
    "terminated": signals.SIGTERM,
    "CPU time limit exceeded": signals.SIGXCPU,
    "file size limit exceeded": signals.SIGXFSZ,
    "virtual timer expired": signals.SIGVTALRM,
    "profiling timer expired": signals.SIGPROF,
    "bad system call": signals.SIGSYS,
}


@dataclass(frozen=True, slots=True)
class Started:
    pid: int


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of output. It may cut a multi-byte character; ``CommandResult`` and callbacks never
    do.
    """

    stream: StreamName
    data: bytes


@dataclass(frozen=True, slots=True)
class Exited:
    """The end. ``exit_code`` is the command's own, or 128 + the signal that ended it."""

    exit_code: int
    status: str = ""
    error: str | None = None


ProcessEvent = Started | Output | Exited


def exited(end: dict[str, Any]) -> Exited:
    """Read the wire's ``end`` event; Go words a death by signal ``signal: killed``."""
    status = str(end.get("status") or "")
    code = int(end.get("exitCode") or 0)
    if status.startswith("signal: "):
        word = status.removeprefix("signal: ").removesuffix(" (core dumped)")
        number = _SIGNAL_WORDS.get(word) or _number(word)
        code = 128 + number if number else (code if code > 0 else 128)
    return Exited(exit_code=code, status=status, error=end.get("error") or None)


def _number(word: str) -> int | None:
    """Of a signal without a name, such as the real-time ones: ``signal 34``."""
    number = word.removeprefix("signal ")
    return int(number) if number.isdecimal() else None
