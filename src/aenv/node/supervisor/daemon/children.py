"""The children: short runs, watched records, and the reaping of everything that is ours."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from . import processes
from .journal import Journal, Record
from .loop import Loop, Timer
from .pipes import Console, Consoles, Drain
from .processes import Ending

_REMEMBERED = 256
_POLL = 0.5


class Run:
    """A short command. ``done`` gets the ending and both outputs (a console's for both when it has
    one).
    """

    def __init__(
        self, pid: int, out: Drain, err: Drain, done: Callable[[Run, Ending], None]
    ) -> None:
        self.pid = pid
        self.out = out
        self.err = err
        self.done = done
        self.timed_out = False
        self.deadline: Timer | None = None


class Children:
    """Owns runs and records. ``on_exit`` is called once for each record that ends."""

    def __init__(self, loop: Loop, journal: Journal, on_exit: Callable[[Record], None]) -> None:
        self._loop = loop
        self.journal = journal
        self._on_exit = on_exit
        self._runs: dict[int, Run] = {}
        self._consoles = Consoles(loop)
        self._pidfds: dict[str, int] = {}
        self._recent: OrderedDict[int, tuple[int | None, Ending]] = OrderedDict()
        loop.on_children(self.reap)
        for record in list(journal.records.values()):
            if record.console and os.path.exists(record.console):
                self._consoles.open(record.console)
            if record.ending is None:
                self._follow(record)

    @property
    def busy(self) -> bool:
        return bool(self._runs) or any(r.ending is None for r in self.journal.records.values())

    def run(
        self,
        argv: list[str],
        env: dict[str, str],
        cwd: str | None,
        timeout: float,
        limit: int,
        console: str | None,
        done: Callable[[Run, Ending], None],
    ) -> None:
        if console:
            drain: Drain = self._consoles.open(console)
            writer = self._consoles.writer(console)
            pid = self._spawn(argv, env, cwd, writer, writer)
            run = Run(pid, drain, drain, done)
        else:
            out_read, out_write = os.pipe()
            err_read, err_write = os.pipe()
            out, err = Drain(out_read, limit), Drain(err_read, limit)
            try:
                pid = self._spawn(argv, env, cwd, out_write, err_write)
            except OSError:
                out.close()
                err.close()
                raise
            run = Run(pid, out, err, done)
            for pipe in (out, err):
                self._loop.watch(pipe.fd, partial(self._drain, pipe))
        self._runs[pid] = run
        run.deadline = self._loop.at(time.monotonic() + timeout, lambda: self._expire(run))

    def spawn(
        self, key: str, argv: list[str], env: dict[str, str], cwd: str | None, console: str
    ) -> Record:
        self._consoles.open(console)
        writer = self._consoles.writer(console)
        try:
            pid = self._spawn(argv, env, cwd, writer, writer)
        except OSError:
            self._consoles.drop(console)
            raise
        record = Record(key, pid, processes.start_time(pid), console)
        record.child = True
        self.journal.write(record)
        return record

    def watch(self, key: str, pid: int, console: str | None) -> Record:
        """Start to follow a process that one of our children left behind, or tell how it has just
        ended.
        """
        record = Record(key, pid, processes.start_time(pid), console)
        start, ending = self._recent.get(pid, (None, None))
        if ending is not None and record.start in (None, start):
            record.start, record.ending = start, ending
        elif not processes.alive(pid, record.start):
            record.ending = Ending()
        else:
            self._follow(record)
        self.journal.write(record)
        return record

    def signal(self, record: Record, number: int, group: bool) -> bool:
        """False: it has ended. No pid can be reused here: ours are reaped by us alone, others have
        a pidfd.
        """
        if record.ending is not None:
            return False
        try:
            if group and record.child:
                os.killpg(record.pid, number)
            elif record.key in self._pidfds:
                signal.pidfd_send_signal(self._pidfds[record.key], number)
            elif record.child or processes.alive(record.pid, record.start):
                os.kill(record.pid, number)
        except ProcessLookupError:
            return False
        return True

    def output(self, record: Record) -> str:
        return self._consoles.text(record.console or "")

    def forget(self, record: Record) -> None:
        self._unfollow(record)
        self.journal.forget(record.key)
        if record.console:
            self._consoles.drop(record.console)

    def drop_console(self, path: str) -> None:
        """For a run that left nothing to watch."""
        self._consoles.drop(path)

    def reap(self) -> None:
        while (dead := processes.reap_one()) is not None:
            self._ended(*dead)

    def _ended(self, pid: int, start: int | None, ending: Ending) -> None:
        run = self._runs.pop(pid, None)
        if run is not None:
            self._finish(run, ending)
        for record in self.journal.records.values():
            if record.pid == pid and record.ending is None and record.start == start:
                self._close(record, ending)
                return
        self._recent[pid] = (start, ending)
        while len(self._recent) > _REMEMBERED:
            self._recent.popitem(last=False)

    def _close(self, record: Record, ending: Ending) -> None:
        record.ending = ending
        self._unfollow(record)
        self.journal.write(record)
        self._on_exit(record)

    def _finish(self, run: Run, ending: Ending) -> None:
        if run.deadline:
            run.deadline.cancelled = True
        for drain in {run.out, run.err}:
            drain.exhaust()
            if not isinstance(drain, Console):
                self._loop.unwatch(drain.fd)
                drain.close()
        run.done(run, ending)

    def _expire(self, run: Run) -> None:
        if run.pid in self._runs:
            run.timed_out = True
            with contextlib.suppress(ProcessLookupError):
                os.killpg(run.pid, signal.SIGKILL)

    def _spawn(
        self, argv: list[str], env: dict[str, str], cwd: str | None, out: int, err: int
    ) -> int:
        null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return processes.spawn(argv, env, cwd, null, out, err)
        finally:
            for fd in {null, out, err}:
                os.close(fd)

    def _follow(self, record: Record) -> None:
        """A child ends in :meth:`reap`; anybody else's process is seen through a pidfd, or by
        asking (no Linux).
        """
        record.child = processes.parent(record.pid) == os.getpid()
        if record.child:
            return
        if hasattr(os, "pidfd_open"):
            try:
                fd = os.pidfd_open(record.pid)
            except ProcessLookupError:
                record.ending = Ending()
                return
            except OSError:
                pass
            else:
                self._pidfds[record.key] = fd
                self._loop.watch(fd, lambda: self._vanished(record))
                return
        self._loop.at(time.monotonic() + _POLL, lambda: self._ask(record))

    def _ask(self, record: Record) -> None:
        if record.ending is not None or self.journal.records.get(record.key) is not record:
            return
        if processes.alive(record.pid, record.start):
            self._loop.at(time.monotonic() + _POLL, lambda: self._ask(record))
        else:
            self._vanished(record)

    def _vanished(self, record: Record) -> None:
        self.reap()
        if record.ending is None:
            self._close(record, Ending())

    def _unfollow(self, record: Record) -> None:
        fd = self._pidfds.pop(record.key, None)
        if fd is not None:
            self._loop.unwatch(fd)
            os.close(fd)

    def _drain(self, drain: Drain) -> None:
        if drain.read() == 0:
            self._loop.unwatch(drain.fd)
