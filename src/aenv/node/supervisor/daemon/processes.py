"""Processes as the supervisor sees them: starting, identifying, and how they ended."""

from __future__ import annotations

import os
import signal
import sys

LINUX = sys.platform == "linux"
_RESET = ("SIGPIPE", "SIGXFSZ", "SIGCHLD", "SIGTERM", "SIGINT", "SIGHUP")


class Ending:
    """How a process ended: an exit code, or a signal, or neither when nobody could ask (not our
    child).
    """

    __slots__ = ("code", "signal")

    def __init__(self, code: int | None = None, signal: int | None = None) -> None:
        self.code = code
        self.signal = signal

    @classmethod
    def of(cls, status: int) -> Ending:
        if os.WIFSIGNALED(status):
            return cls(signal=os.WTERMSIG(status))
        return cls(code=os.WEXITSTATUS(status))

    def as_json(self) -> dict[str, int | None]:
        return {"code": self.code, "signal": self.signal}


def start_time(pid: int) -> int | None:
    """When ``pid`` started, in clock ticks since boot; with the pid it names one process. None:
    gone or not Linux.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[19])
    except (OSError, IndexError, ValueError):
        return None


def parent(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return int(stat.read().rpartition(b")")[2].split()[1])
    except (OSError, IndexError, ValueError):
        return None


def reap_one() -> tuple[int, int | None, Ending] | None:
    """Reap one dead child: its pid, start time and ending. None: there is none."""
    try:
        if not hasattr(os, "waitid"):  # macOS
            pid, status = os.waitpid(-1, os.WNOHANG)
            return (pid, None, Ending.of(status)) if pid else None
        peeked = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if peeked is None:
            return None
        start = start_time(peeked.si_pid)  # a zombie still has one; once reaped it is gone
        pid, status = os.waitpid(peeked.si_pid, 0)
    except ChildProcessError:
        return None
    return pid, start, Ending.of(status)


def boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def alive(pid: int, start: int | None) -> bool:
    if pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return start is None or start_time(pid) == start


def become_subreaper() -> None:
    """Orphans of our children become ours (Linux; elsewhere only direct children are reaped)."""
    if not LINUX:
        return
    import ctypes

    pr_set_child_subreaper = 36
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def spawn(
    argv: list[str], env: dict[str, str], cwd: str | None, stdin: int, stdout: int, stderr: int
) -> int:
    """Start ``argv`` in a session of its own and return its pid once the program runs; OSError if
    it cannot.
    """
    failed, report = os.pipe()
    pid = os.fork()
    if pid == 0:
        _become(argv, env, cwd, (stdin, stdout, stderr), report)
    os.close(report)
    try:
        message = os.read(failed, 4096)
    finally:
        os.close(failed)
    if message:
        os.waitpid(pid, 0)
        raise OSError(message.decode(errors="replace"))
    return pid


def _become(
    argv: list[str], env: dict[str, str], cwd: str | None, stdio: tuple[int, int, int], report: int
) -> None:
    try:
        signal.set_wakeup_fd(-1)
        for name in _RESET:
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.SIG_DFL)
        os.setsid()
        if cwd:
            os.chdir(cwd)
        for target, source in enumerate(stdio):
            os.dup2(source, target)
        os.execvpe(argv[0], argv, env)  # noqa: S606
    except BaseException as error:  # noqa: BLE001  never into the parent's loop
        os.write(report, f"cannot start {argv[0]}: {error}".encode()[:4096])
    finally:
        os._exit(127)


class Tail:
    """The last ``limit`` bytes of what was written."""

    __slots__ = ("buffer", "limit", "truncated")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.buffer = bytearray()
        self.truncated = False

    def add(self, data: bytes) -> None:
        self.buffer += data
        excess = len(self.buffer) - self.limit
        if excess > 0:
            del self.buffer[:excess]
            self.truncated = True

    def text(self) -> str:
        """Latin-1, so that every byte survives JSON."""
        return self.buffer.decode("latin-1")
