"""Snapshots: a sandbox's disk and, unless left out, its memory, at one moment."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from aenv.models.blobs import BlobRef
from aenv.models.sandboxes import Resources

SNAPSHOT_ID = re.compile(r"s[a-z0-9]{19}\Z")
"""A node's name for a stored snapshot; the API's ``snapshotID`` is control's matter."""


class SnapshotKind(StrEnum):
    """Why a snapshot is kept: its sandbox is paused, somebody asked for it, forks start from it at
    the moment, it is a template that was built, or a cached step of a build.
    """

    PAUSE = "pause"
    NAMED = "named"
    FORK = "fork"
    TEMPLATE = "template"
    LAYER = "layer"


class PauseMode(StrEnum):
    """What a pause keeps: disk and memory, or the disk alone."""

    FULL = "full"
    FILESYSTEM = "filesystem"


class RestoreMode(StrEnum):
    """How a sandbox came back: thawed in place, restored from a memory image, booted from disk."""

    HOT = "hot"
    WARM = "warm"
    DISK = "disk"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """What can restore a memory image. ``cpu_features`` is an opaque, comparable word."""

    engine: str
    engine_version: str
    cpu_features: str
    resources: Resources


class SnapshotPlace(StrEnum):
    """Where a snapshot is: on its node, in the blob store, in both. LOST: in neither."""

    LOCAL = "local"
    STORED = "stored"
    BOTH = "both"
    LOST = "lost"

    @classmethod
    def of(cls, *, here: bool, stored: bool) -> SnapshotPlace:
        if here:
            return cls.BOTH if stored else cls.LOCAL
        return cls.STORED if stored else cls.LOST


@dataclass(frozen=True, slots=True)
class ColdCopy:
    """A snapshot in the blob store: all that a node needs to have it again.

    ``manifest`` and ``private`` are a node's own words; the second ones are secrets. ``layers``:
    blobs of the sealed layers by their keys, ``memory``: of the memory image by name.
    """

    snapshot_id: str
    manifest: dict[str, Any]
    private: dict[str, Any] = field(repr=False)
    layers: dict[str, BlobRef]
    memory: dict[str, BlobRef]

    @property
    def bytes(self) -> int:
        return sum(ref.length for ref in (*self.layers.values(), *self.memory.values()))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> ColdCopy:
        return cls(
            snapshot_id=found["snapshot_id"],
            manifest=found["manifest"],
            private=found["private"],
            layers={key: BlobRef(**ref) for key, ref in found["layers"].items()},
            memory={name: BlobRef(**ref) for name, ref in found["memory"].items()},
        )


@dataclass(frozen=True, slots=True)
class Kept:
    """What putting a snapshot into the blob store came to. Bytes: as in ``blobs.Uploaded``."""

    copy: ColdCopy
    bytes_new: int
    bytes_shared: int
    bytes_zero: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class SnapshotImage:
    """A snapshot as a node stores it. Bytes: ``disk_bytes`` is what the sandbox had written in all,
    ``own_bytes`` what deleting it would free now (disk and memory), ``memory_bytes`` 0 without
    memory.

    ``template_digest`` names the read-only layers below; they stay while a snapshot needs them.
    ``checksum`` is empty until it was computed, after the snapshot was acknowledged.
    """

    id: str
    template: str
    template_digest: str
    resources: Resources
    created_at: float
    has_memory: bool
    fingerprint: Fingerprint | None
    disk_bytes: int
    own_bytes: int
    memory_bytes: int
    parent: str | None = None
    checksum: str = ""
