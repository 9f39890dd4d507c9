"""The credentials file (mode 0600): ``{"profiles": {name: {"url", "api_key", …}}}`` for the local
CLI and SDK.

A server writes two profiles: one named by its instance id, and ``default`` unless that one belongs
to somebody: to the user (no ``instance`` in it) or to another server that runs at the moment.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aenv.models.errors import InvalidRequestError
from aenv.models.folders import Folders
from aenv.store.locks import is_locked

DEFAULT = "default"


def local_key(folders: Folders) -> str | None:
    """The API key this instance's server stored earlier."""
    for entry in _read(folders.credentials)["profiles"].values():
        if entry.get("instance") == folders.instance and entry.get("api_key"):
            return str(entry["api_key"])
    return None


def store_local(folders: Folders, *, url: str, api_key: str) -> None:
    """Write this server's profile, and make it the default where that is free."""
    entry = {
        "url": url,
        "api_key": api_key,
        "instance": folders.instance,
        "data": str(folders.data),
    }
    with _exclusive(folders.credentials):
        content = _read(folders.credentials)
        profiles = content["profiles"]
        profiles[folders.instance] = entry
        if _default_is_free(profiles.get(DEFAULT), folders):
            profiles[DEFAULT] = entry
        _write(folders.credentials, content)


def _default_is_free(entry: dict[str, Any] | None, folders: Folders) -> bool:
    if entry is None or entry.get("instance") == folders.instance:
        return True
    if "instance" not in entry or "data" not in entry:
        return False
    return not is_locked(Path(entry["data"]))


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except FileNotFoundError:
        return {"profiles": {}}
    except (OSError, ValueError) as error:
        raise InvalidRequestError(
            f"the credentials file {path} cannot be read ({error}); mend it or move it away"
        ) from error
    profiles = content.get("profiles") if isinstance(content, dict) else None
    if not isinstance(profiles, dict) or not all(isinstance(p, dict) for p in profiles.values()):
        raise InvalidRequestError(
            f"the credentials file {path} holds no 'profiles' table; mend it or move it away"
        )
    return {"profiles": profiles, **content}


def _write(path: Path, content: dict[str, Any]) -> None:
    """Replace the file at once; it is never readable by others, not even for a moment."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".credentials-")
    try:
        with os.fdopen(descriptor, "w") as file:
            json.dump(content, file, indent=2)
            file.write("\n")
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


@contextmanager
def _exclusive(path: Path) -> Iterator[None]:
    """Two servers that start at once do not lose each other's profile."""
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    descriptor = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
