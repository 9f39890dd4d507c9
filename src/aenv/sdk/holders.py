"""Who serves a data folder of this machine now: its lock tells, a URL on disk may be anybody's."""

from __future__ import annotations

import fcntl
import json
from pathlib import Path

LOCK_NAME = "server.lock"


def running(data: Path) -> str | None:
    """The URL of the server that holds this data folder; None while there is none, or it starts."""
    holder = holder_of(data)
    url = holder.get("url") if holder else None
    return str(url) if url else None


def holder_of(data: Path) -> dict[str, object] | None:
    """``pid`` and ``url`` of the server that holds this data folder's lock now."""
    try:
        with (data / LOCK_NAME).open("r+") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except OSError:
                content = json.load(file)
                return content if isinstance(content, dict) else None
    except (OSError, ValueError):
        pass
    return None


def is_ours(data: Path) -> bool:
    """Whether this user can tell at all; root's data folder is closed to others."""
    try:
        (data / LOCK_NAME).stat()
    except PermissionError:
        return False
    except OSError:
        return True
    return True
