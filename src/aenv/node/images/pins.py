"""Who needs an image: symbolic links ``<shelf>/pins/<digest>/…`` to files of those who do.

A pin holds for as long as its target exists: deleting a sandbox or a snapshot, or a whole data
folder, lets go of the images it needed. Its link goes with it (``release``), or is swept when its
holder was killed. Servers of one host share the shelf: a link is made shortly before its target may
be there, so that a young one is left alone. Blocking.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

_PINS = "pins"
_GRACE = 3600.0


def pin(shelf: Path, digest: str, holder: Path) -> None:
    """Keep the image from being removed while ``holder`` exists. Idempotent."""
    folder = _folder(shelf, digest)
    folder.mkdir(parents=True, exist_ok=True)
    try:
        (folder / _link(holder)).symlink_to(holder)
    except FileExistsError:
        return


def release(shelf: Path, holder: Path) -> None:
    """Remove the links of a holder that is gone."""
    for folder in _subfolders(shelf / _PINS):
        (folder / _link(holder)).unlink(missing_ok=True)


def needed_by(shelf: Path, digest: str) -> list[Path]:
    """The holders that exist."""
    return _holders(_folder(shelf, digest))


def sweep(shelf: Path) -> None:
    """Remove what is left of holders that have long been gone."""
    for folder in _subfolders(shelf / _PINS):
        _holders(folder)


def _holders(folder: Path) -> list[Path]:
    found = []
    for link in _entries(folder):
        try:
            if _is_held(link):
                found.append(link.readlink())
            elif time.time() - link.lstat().st_mtime > _GRACE:
                link.unlink(missing_ok=True)
        except FileNotFoundError:
            continue  # another server has just removed it
    return found


def _is_held(link: Path) -> bool:
    """What cannot be looked at may be there."""
    try:
        link.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except FileNotFoundError:
        return []


def _subfolders(folder: Path) -> list[Path]:
    return [path for path in _entries(folder) if path.is_dir()]


def _link(holder: Path) -> str:
    return hashlib.sha256(os.fsencode(holder)).hexdigest()[:32]


def _folder(shelf: Path, digest: str) -> Path:
    return shelf / _PINS / digest[:32]
