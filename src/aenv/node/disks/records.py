"""What must be known of a disk to mount it again: a small file beside its upper."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

VERSION = 1


@dataclass(frozen=True, slots=True)
class DiskRecord:
    lowers: tuple[Path, ...]
    size_mb: int

    def write(self, volume: Path) -> None:
        entry = {"version": VERSION, "lowers": list(map(str, self.lowers)), "size_mb": self.size_mb}
        staged = volume / ".disk.json"
        staged.write_text(json.dumps(entry))
        staged.replace(volume / "disk.json")

    @classmethod
    def read(cls, volume: Path) -> DiskRecord | None:
        """None when the volume is absent or was never finished."""
        try:
            entry = json.loads((volume / "disk.json").read_text())
            if entry["version"] != VERSION:
                return None
            return cls(tuple(map(Path, entry["lowers"])), int(entry["size_mb"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None
