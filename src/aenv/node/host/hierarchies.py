"""Where the control group hierarchies are: one (v2), or one per controller (v1, hybrid)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

CONTROLLERS = ("cpu", "cpuacct", "memory", "pids")
UNIFIED_CONTROLLERS = ("cpu", "memory", "pids")


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """``v1`` maps each controller we need to its mount, ``others`` are the mounts of the rest;
    ``unified`` is the v2 mount if it has the controllers."""

    v1: dict[str, Path] = field(default_factory=dict)
    others: tuple[Path, ...] = ()
    unified: Path | None = None

    @classmethod
    def find(cls, mountinfo: Path = Path("/proc/self/mountinfo")) -> Hierarchies:
        v1: dict[str, Path] = {}
        mounts: list[Path] = []
        unified: Path | None = None
        for line in mountinfo.read_text().splitlines():
            left, _, right = line.partition(" - ")
            if not right.startswith("cgroup"):
                continue
            kind, _, options = (*right.split(" ", 2), "", "")[:3]
            target = Path(left.split(" ")[4])
            if kind == "cgroup2":
                unified = target
            elif kind == "cgroup":
                mounts.append(target)
                names = options.split(",")
                v1.update({name: target for name in CONTROLLERS if name in names})
        if unified is not None and not v1 and _has_controllers(unified):
            return cls(unified=unified)
        return cls(v1, tuple(mount for mount in mounts if mount not in v1.values()))

    @property
    def missing(self) -> list[str]:
        if self.unified is not None:
            return []
        return [name for name in CONTROLLERS if name not in self.v1]


def _has_controllers(unified: Path) -> bool:
    try:
        present = (unified / "cgroup.controllers").read_text().split()
    except OSError:
        return False
    return all(name in present for name in UNIFIED_CONTROLLERS)
