"""Folders of ours alone: secrets, sockets and what guests wrote lie in them.

Whoever else could enter them would meet files that guests made (set-uid ones of guest root
included), and whoever else owned them could exchange what is inside.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from aenv.models.errors import HostSetupError


def make_private(folder: Path) -> None:
    """Make ``folder``, or tighten the one that is there, to mode 0700.

    HostSetupError when it, or the folder that holds it, is another user's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _require_holder(folder.parent)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        status = os.fstat(descriptor)
        if status.st_uid != os.geteuid():
            raise _foreign(folder, status.st_uid)
        if status.st_mode & 0o077:
            os.fchmod(descriptor, 0o700)
    finally:
        os.close(descriptor)


def _require_holder(parent: Path) -> None:
    """Nobody but us and root may rename what lies in ``parent``."""
    status = parent.stat()
    if status.st_uid not in (0, os.geteuid()):
        raise _foreign(parent, status.st_uid)
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise HostSetupError(
            f"everybody may write to {parent}; correct that (chmod o-w {parent}) or name another "
            "folder (AENV_DATA_DIR, AENV_RUN_DIR)"
        )


def _foreign(folder: Path, uid: int) -> HostSetupError:
    return HostSetupError(
        f"{folder} belongs to uid {uid}, not to uid {os.geteuid()}; remove it, or name another "
        "folder (AENV_DATA_DIR, AENV_RUN_DIR)"
    )
