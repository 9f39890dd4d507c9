"""Volumes: folders of a team that outlive sandboxes, and where sandboxes see them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Self

from aenv.models.errors import InvalidRequestError

VOLUME_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}\Z")
DEFAULT_SIZE_MB = 10240
MAX_MOUNTS = 16
_RESERVED = ("/proc", "/sys", "/dev", "/.aenv")


class VolumeMode(StrEnum):
    """EXCLUSIVE: one sandbox at a time, which may write. READ_ONLY: any number, none writes."""

    EXCLUSIVE = "exclusive"
    READ_ONLY = "read-only"


@dataclass(frozen=True, slots=True)
class VolumeMount:
    """A volume as a sandbox has it. ``own``: a copy that belongs to the sandbox alone, as a fork
    has; ``volume_id`` is then that of the volume it is a copy of.
    """

    volume_id: str
    name: str
    path: str
    read_only: bool = False
    own: bool = False

    @classmethod
    def from_json(cls, found: dict[str, Any]) -> Self:
        return cls(**found)


class EntryType(StrEnum):
    """As E2B's clients know them; UNKNOWN: a FIFO, a device or a socket, which nobody opens."""

    UNKNOWN = "unknown"
    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"


@dataclass(frozen=True, slots=True)
class VolumeEntry:
    """One name in a volume. ``size`` in bytes, times in nanoseconds since the epoch."""

    name: str
    type: EntryType
    path: str
    size: int
    mode: int
    uid: int
    gid: int
    atime: int
    mtime: int
    ctime: int
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Ownership:
    """What is to be set of an entry; None: as it is, or as it comes."""

    uid: int | None = None
    gid: int | None = None
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class VolumeUse:
    """Bytes written, and the most that may be (0: not enforced on this host)."""

    used_bytes: int
    limit_bytes: int


def check_name(name: str) -> str:
    """InvalidRequestError."""
    if not VOLUME_NAME.match(name):
        raise InvalidRequestError(
            f"name: {name[:128]!r} is not 1 to 128 letters, digits, dashes, dots and underscores"
        )
    return name


def check_mount_path(path: str) -> str:
    """Where a guest may see a volume, without a slash at its end. InvalidRequestError."""
    parts = path.split("/")
    inner = [part for part in parts[1:] if part]
    if parts[0] or not inner or {".", ".."} & set(inner) or "\0" in path or len(path) > 1024:
        raise InvalidRequestError(f"volumeMounts: {path[:128]!r} is not an absolute path below /")
    whole = "/" + "/".join(inner)
    for taken in _RESERVED:
        if whole == taken or whole.startswith(taken + "/"):
            raise InvalidRequestError(f"volumeMounts: {whole[:128]!r}: {taken} is the system's")
    return whole


def check_paths(paths: list[str]) -> None:
    """No two volumes at or below one another. InvalidRequestError."""
    for index, one in enumerate(sorted(paths)):
        for other in sorted(paths)[index + 1 :]:
            if other == one or other.startswith(one + "/"):
                raise InvalidRequestError(
                    f"volumeMounts: {other[:128]!r} is at or below {one[:128]!r}"
                )
