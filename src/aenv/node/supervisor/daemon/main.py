"""Starting the daemon: one per run folder, ready when the starting process exits 0."""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import socket
import sys

from . import processes
from .journal import Journal
from .loop import Loop
from .server import Server

ALREADY_RUNS = 3
_MANY_FILES = 1 << 16


def main(folder: str, idle: float) -> int:
    """Become the supervisor of ``folder``. Returns in the starting process; the daemon itself
    leaves by ``_exit``.
    """
    os.closerange(3, _MANY_FILES)  # uvloop leaks its own; its pipes would never end
    os.umask(0o077)
    os.makedirs(folder, mode=0o700, exist_ok=True)
    lock = os.open(os.path.join(folder, "supervisor.lock"), os.O_CREAT | os.O_RDWR, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return ALREADY_RUNS
    path = os.path.join(folder, "supervisor.sock")
    listener = _listen(path)
    if os.fork():
        return 0
    try:
        _daemonise(folder)
        _serve(folder, listener, idle)
    except BaseException as error:  # noqa: BLE001  the last place that can say why
        os.write(2, f"supervisor ended: {error!r}\n".encode())
    finally:
        _unlink(path)
        os._exit(0)


def _serve(folder: str, listener: socket.socket, idle: float) -> None:
    processes.become_subreaper()
    loop = Loop()

    def stop(*_: object) -> None:
        loop.stopped = True

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    journal = Journal(os.path.join(folder, "supervisor.journal"))
    Server(loop, listener, journal, idle)
    loop.run()


def _daemonise(folder: str) -> None:
    os.setsid()
    os.chdir("/")
    null = os.open(os.devnull, os.O_RDONLY)
    log = os.open(
        os.path.join(folder, "supervisor.log"), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600
    )
    for target, source in ((0, null), (1, log), (2, log)):
        os.dup2(source, target)
    os.close(null)
    os.close(log)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _listen(path: str) -> socket.socket:
    """The holder of the lock may replace a socket left by a crash. Long paths are bound relative
    to their folder.
    """
    _unlink(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    here = os.open(".", os.O_RDONLY)
    try:
        os.chdir(os.path.dirname(path))
        listener.bind(os.path.basename(path))
    finally:
        os.fchdir(here)
        os.close(here)
    listener.listen(64)
    return listener


def _unlink(path: str) -> None:
    with contextlib.suppress(OSError):
        os.unlink(path)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], float(sys.argv[2])))
