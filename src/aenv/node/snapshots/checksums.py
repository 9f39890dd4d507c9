"""The checksum of a memory image: one sha256 over the names and contents of its files. Blocking."""

from __future__ import annotations

import hashlib
from pathlib import Path

from aenv.node.snapshots.manifest import CHECKSUM, MEMORY


def of(image: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(path for path in image.rglob("*") if path.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.relative_to(image)}\0{digest}\n".encode())
    return total.hexdigest()


def add(folder: Path) -> str:
    """Compute it and keep it beside the manifest."""
    found = of(folder / MEMORY)
    staged = folder / f".{CHECKSUM}"
    staged.write_text(found)
    staged.rename(folder / CHECKSUM)
    return found


def read(folder: Path) -> str:
    """Empty until it was computed."""
    try:
        return (folder / CHECKSUM).read_text()
    except FileNotFoundError:
        return ""
