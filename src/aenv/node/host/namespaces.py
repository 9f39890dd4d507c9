"""Network namespaces under ``/var/run/netns``, as ``ip netns`` knows them.

A thread that changes its namespace is never used again: each call runs in a thread of its own.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from aenv.node.host.mounts import MNT_DETACH, MS_BIND, MS_PRIVATE, MS_REC, mount, unmount

NETNS_FOLDER = Path("/var/run/netns")
CLONE_NEWNET = 0x40000000
_CLONE_NEWNS = 0x00020000
_libc = ctypes.CDLL(None, use_errno=True)

Result = TypeVar("Result")


def create(name: str, setup: Callable[[], None]) -> None:
    """Make a namespace, run ``setup`` in it, and give it its name."""
    NETNS_FOLDER.mkdir(mode=0o755, parents=True, exist_ok=True)
    path = NETNS_FOLDER / name

    def work() -> None:
        _check(_libc.unshare(CLONE_NEWNET), "unshare network namespace")
        setup()
        mount("/proc/thread-self/ns/net", path, "none", MS_BIND)

    os.close(os.open(path, os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o000))
    try:
        _in_thread(work)
    except BaseException:
        remove(name)
        raise


def enter(name: str, work: Callable[[], Result]) -> Result:
    """Run ``work`` inside the namespace."""

    def entered() -> Result:
        fd = os.open(NETNS_FOLDER / name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            _check(_libc.setns(fd, CLONE_NEWNET), f"enter network namespace {name}")
        finally:
            os.close(fd)
        return work()

    return _in_thread(entered)


def remove(name: str) -> None:
    """Also where ``ip netns`` has since bound the folder over itself, as it does at its first use:
    then our mount lies below that one, out of reach.
    """
    path = NETNS_FOLDER / name
    _detach(path)
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        _in_thread(lambda: _uncover(path))


def names(prefix: str) -> list[str]:
    if not NETNS_FOLDER.is_dir():
        return []
    return sorted(path.name for path in NETNS_FOLDER.iterdir() if path.name.startswith(prefix))


def _uncover(path: Path) -> None:
    """Take away what covers it in a mount namespace of our own, and unlink it there, which ends
    its mounts everywhere.
    """
    _check(_libc.unshare(_CLONE_NEWNS), "unshare mount namespace")
    mount("none", Path("/"), "none", MS_REC | MS_PRIVATE)
    while True:
        while _detach(path):
            pass
        try:
            return path.unlink(missing_ok=True)
        except OSError as error:
            if error.errno != errno.EBUSY or not _detach(NETNS_FOLDER):
                raise


def _detach(path: Path) -> bool:
    """Whether something was mounted there."""
    try:
        unmount(path, MNT_DETACH)
    except OSError:
        return False
    return True


def _in_thread(work: Callable[[], Result]) -> Result:
    outcome: list[Result] = []
    failure: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(work())
        except BaseException as error:  # noqa: BLE001 - handed to the caller below
            failure.append(error)

    thread = threading.Thread(target=run, name="aenv-netns", daemon=True)
    thread.start()
    thread.join()
    if failure:
        raise failure[0]
    return outcome[0]


def _check(result: int, action: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{action}: {os.strerror(code)}")
