"""Which image a name means on this host: ``<shelf>/names/<key>.json``. Blocking."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from aenv.node.images.records import write_atomically


@dataclass(frozen=True, slots=True)
class Names:
    """``root`` is the folder of the shelf of images."""

    root: Path

    def get(self, name: str) -> str | None:
        """The recipe's digest of the image."""
        found = _read(self._file(name))
        return found[1] if found and found[0] == name else None

    def all(self) -> list[str]:
        found = (_read(path) for path in sorted(self._folder.glob("*.json")))
        return sorted(one[0] for one in found if one)

    def set(self, name: str, recipe: str) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        write_atomically(self._file(name), {"name": name, "recipe": recipe})

    def remove(self, name: str) -> None:
        self._file(name).unlink(missing_ok=True)

    @property
    def _folder(self) -> Path:
        return self.root / "names"

    def _file(self, name: str) -> Path:
        return self._folder / f"{key_of(name)}.json"


def key_of(name: str) -> str:
    """An image's name as a part of file names."""
    return "oci-" + hashlib.sha256(name.encode()).hexdigest()[:24]


def _read(path: Path) -> tuple[str, str] | None:
    try:
        found = json.loads(path.read_text())
        return str(found["name"]), str(found["recipe"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
