"""What must be known of a disk to mount it again: a small file beside its upper.

Version 2 names the image a disk began as. Records of version 1 are read as disks that began empty.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

VERSION = 2
_READABLE = (1, 2)


@dataclass(frozen=True, slots=True)
class DiskRecord:
    lowers: tuple[Path, ...]
    size_mb: int
    source: str | None = None

    def write(self, volume: Path) -> None:
        entry = {
            "version": VERSION,
            "lowers": list(map(str, self.lowers)),
            "size_mb": self.size_mb,
            "source": self.source,
        }
        staged = volume / ".disk.json"
        staged.write_text(json.dumps(entry))
        staged.replace(volume / "disk.json")

    @classmethod
    def read(cls, volume: Path) -> DiskRecord | None:
        """None when the volume is absent, was never finished, or is of a later version."""
        try:
            entry = json.loads((volume / "disk.json").read_text())
            if entry["version"] not in _READABLE:
                return None
            source = entry.get("source")
            return cls(tuple(map(Path, entry["lowers"])), int(entry["size_mb"]), source)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
