"""A clock that only moves when it is told to."""

from __future__ import annotations

from dataclasses import dataclass

from aenv.control.clocks import SECOND


@dataclass
class FakeClock:
    """``pass_time`` moves both clocks (also what a suspend does); ``set_wall`` sets the wall clock
    alone.
    """

    wall_ns: int = 1_800_000_000 * SECOND
    boot_ns: int = 100 * SECOND

    def wall(self) -> int:
        return self.wall_ns

    def boot(self) -> int:
        return self.boot_ns

    def pass_time(self, seconds: float) -> None:
        self.wall_ns += int(seconds * SECOND)
        self.boot_ns += int(seconds * SECOND)

    def set_wall(self, seconds: float) -> None:
        self.wall_ns += int(seconds * SECOND)
