"""How much the host's tasks wait for memory: PSI, the kernel's pressure stall information."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


class StallMeter:
    """``file``: see :func:`aenv.node.memory_groups.stall_file`. Reads ``total=`` (µs) of the line
    ``some``, so that its window is the caller's own.
    """

    def __init__(self, file: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._file = file
        self._clock = clock
        self._before: tuple[float, float] | None = None
        self._share: float | None = None

    @property
    def told(self) -> bool:
        """Whether the kernel tells at all."""
        return self._total() is not None

    @property
    def share(self) -> float | None:
        """As of the last :meth:`read`."""
        return self._share

    def read(self) -> float | None:
        """The share (0…1) of the time since the last reading in which some task waited for memory;
        None at first, and where the kernel does not tell.
        """
        now, total = self._clock(), self._total()
        before, self._before = self._before, None if total is None else (now, total)
        if total is None or before is None or now <= before[0]:
            self._share = None
        else:
            self._share = min(1.0, max(0.0, (total - before[1]) / (now - before[0])))
        return self._share

    def _total(self) -> float | None:
        """Seconds."""
        try:
            for line in self._file.read_text().splitlines():
                kind, *fields = line.split()
                if kind == "some":
                    values = dict(field.split("=", 1) for field in fields)
                    return int(values["total"]) / 1e6
        except (OSError, ValueError, KeyError):
            pass
        return None
