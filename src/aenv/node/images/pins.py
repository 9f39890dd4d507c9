"""Who needs an image: symbolic links ``<shelf>/pins/<digest>/…`` to files of those who do.

A pin holds for as long as its target exists, so nobody has to remove one: deleting a sandbox or a
snapshot, or a whole data folder, lets go of the images it needed. Blocking.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

_PINS = "pins"


def pin(shelf: Path, digest: str, holder: Path) -> None:
    """Keep the image from being removed while ``holder`` exists. Idempotent."""
    folder = _folder(shelf, digest)
    folder.mkdir(parents=True, exist_ok=True)
    link = folder / hashlib.sha256(os.fsencode(holder)).hexdigest()[:32]
    try:
        link.symlink_to(holder)
    except FileExistsError:
        return


def needed_by(shelf: Path, digest: str) -> list[Path]:
    """The holders that exist; the links of others are removed."""
    folder = _folder(shelf, digest)
    if not folder.is_dir():
        return []
    found = []
    for link in folder.iterdir():
        if link.exists():
            found.append(link.readlink())
        else:
            link.unlink(missing_ok=True)
    return found


def _folder(shelf: Path, digest: str) -> Path:
    return shelf / _PINS / digest[:32]
