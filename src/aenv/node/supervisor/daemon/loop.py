"""The selector loop: sockets, pipes, SIGCHLD, pidfds and timers, each with a callback."""

from __future__ import annotations

import contextlib
import heapq
import os
import selectors
import signal
import time
from collections.abc import Callable

Callback = Callable[[], None]


class Timer:
    __slots__ = ("at", "callback", "cancelled")

    def __init__(self, at: float, callback: Callback) -> None:
        self.at = at
        self.callback = callback
        self.cancelled = False

    def __lt__(self, other: Timer) -> bool:
        return self.at < other.at


class Loop:
    def __init__(self) -> None:
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._on_children: Callback = lambda: None
        self.stopped = False
        wake, wakeup = os.pipe()
        for fd in (wake, wakeup):
            os.set_blocking(fd, False)
        self._wake = wake
        signal.set_wakeup_fd(wakeup, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.watch(wake, self._woken)

    def on_children(self, callback: Callback) -> None:
        self._on_children = callback

    def watch(self, fd: int, readable: Callback, writable: Callback | None = None) -> None:
        """Replace what is called when ``fd`` is ready; ``writable`` None: not interested."""
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if writable else 0)
        if fd in self._selector.get_map():
            self._selector.modify(fd, events, (readable, writable))
        else:
            self._selector.register(fd, events, (readable, writable))

    def unwatch(self, fd: int) -> None:
        if fd >= 0 and fd in self._selector.get_map():
            self._selector.unregister(fd)

    def at(self, when: float, callback: Callback) -> Timer:
        timer = Timer(when, callback)
        heapq.heappush(self._timers, timer)
        return timer

    def run(self) -> None:
        while not self.stopped:
            self._fire_timers()
            for key, events in self._selector.select(self._patience()):
                if key.fd not in self._selector.get_map():
                    continue  # unwatched by an earlier callback of this round
                readable, writable = key.data
                if events & selectors.EVENT_READ:
                    readable()
                if (
                    events & selectors.EVENT_WRITE
                    and writable
                    and key.fd in self._selector.get_map()
                ):
                    writable()

    def _patience(self) -> float | None:
        while self._timers and self._timers[0].cancelled:
            heapq.heappop(self._timers)
        if self.stopped:
            return 0
        return max(0.0, self._timers[0].at - time.monotonic()) if self._timers else None

    def _fire_timers(self) -> None:
        now = time.monotonic()
        while self._timers and self._timers[0].at <= now:
            timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                timer.callback()

    def _woken(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 512)
        self._on_children()
