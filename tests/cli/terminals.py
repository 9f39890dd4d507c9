"""A person at a terminal: types, reads, resizes."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import termios
import time
from typing import Any

from tests.cli.conftest import ARGV, Cli

DEADLINE = 60.0


class Terminal:
    """Runs ``aenv …`` on a pseudo-terminal of 24 rows and 80 columns."""

    def __init__(self, cli: Cli, *args: str) -> None:
        self._master, self._slave = pty.openpty()
        self.resize(80, 24)
        self.before = termios.tcgetattr(self._slave)
        self.seen = b""
        self._process = subprocess.Popen(
            [*ARGV, *args],
            stdin=self._slave,
            stdout=self._slave,
            stderr=self._slave,
            env=cli.env,
            cwd=cli.cwd,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def expect(self, text: str) -> None:
        """Read until ``text`` comes; what came before it is forgotten."""
        wanted = text.encode()
        deadline = time.monotonic() + DEADLINE
        while wanted not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if select.select([self._master], [], [], 0.1)[0]:
                self.seen += os.read(self._master, 4096)
        self.seen = self.seen.partition(wanted)[2]

    def resize(self, cols: int, rows: int) -> None:
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, cols, 0, 0))

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def wait(self) -> int:
        """The exit code; the terminal must be as it was."""
        deadline = time.monotonic() + DEADLINE
        while self._process.poll() is None:
            assert time.monotonic() < deadline, self.seen
            if select.select([self._master], [], [], 0.05)[0]:
                self.seen += os.read(self._master, 4096)
        assert self.settings() == self.before
        return int(self._process.returncode)

    def settings(self) -> list[Any]:
        return termios.tcgetattr(self._slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()
        os.close(self._master)
        os.close(self._slave)


def raw(settings: list[Any]) -> bool:
    return not settings[3] & (termios.ECHO | termios.ICANON | termios.ISIG)
