"""What children write: pipes of short runs and consoles of long ones, drained into bounded
tails.
"""

from __future__ import annotations

import contextlib
import os
import time

from .loop import Loop
from .processes import Tail

CONSOLE_LIMIT = 64 * 1024
_CHUNK = 64 * 1024
_PACE = 0.02


class Drain:
    """The read end of a pipe or FIFO; reads at most one chunk per call, never blocks."""

    __slots__ = ("fd", "tail")

    def __init__(self, fd: int, limit: int) -> None:
        os.set_blocking(fd, False)
        self.fd = fd
        self.tail = Tail(limit)

    def read(self) -> int:
        """Bytes read; 0 at the end of the stream or after an error, -1 when there is nothing
        now.
        """
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return -1
        except OSError:
            return 0
        self.tail.add(data)
        return len(data)

    def exhaust(self) -> None:
        """Take what is there now, within the pipe's own capacity."""
        for _ in range(32):
            if self.read() <= 0:
                return

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Console(Drain):
    """A FIFO that a long-lived process writes to.

    Both ends are opened for reading and writing: a writer then never gets EPIPE when the
    supervisor dies, and a new supervisor opens the same path and goes on. Reading is paced, so
    that a guest that floods its console blocks instead of burning the host's CPU.
    """

    __slots__ = ()

    def __init__(self, path: str) -> None:
        with contextlib.suppress(FileExistsError):
            os.mkfifo(path, 0o600)
        super().__init__(os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC), CONSOLE_LIMIT)


class Consoles:
    """The open consoles by path, drained by the loop."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop
        self._open: dict[str, Console] = {}

    def open(self, path: str) -> Console:
        if path not in self._open:
            console = self._open[path] = Console(path)
            self._listen(console)
        return self._open[path]

    def writer(self, path: str) -> int:
        """A new descriptor for a child; an open file of its own, so that the child's is
        blocking.
        """
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def text(self, path: str) -> str:
        console = self._open.get(path)
        if console is None:
            return ""
        console.exhaust()
        return console.tail.text()

    def drop(self, path: str) -> None:
        console = self._open.pop(path, None)
        if console is None:
            return
        self._loop.unwatch(console.fd)
        console.close()
        with contextlib.suppress(OSError):
            os.unlink(path)

    def _listen(self, console: Console) -> None:
        if console.fd >= 0:
            self._loop.watch(console.fd, lambda: self._drain(console))

    def _drain(self, console: Console) -> None:
        console.read()
        self._loop.unwatch(console.fd)
        self._loop.at(time.monotonic() + _PACE, lambda: self._listen(console))
