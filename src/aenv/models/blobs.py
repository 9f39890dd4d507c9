"""Blobs: byte strings of any length in the blob store (layer images, memory images, files)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BlobRef:
    """Names one stored blob. ``id`` alone opens it, on every node that reaches the store.

    ``id``: sha256 of its manifest; ``digest``: sha256 of its content; ``length`` in bytes.
    """

    id: str
    digest: str
    length: int


@dataclass(frozen=True, slots=True)
class Uploaded:
    """What a put came to. ``bytes_new`` + ``bytes_shared`` + ``bytes_zero`` = the blob's length:
    content the store lacked, content it had (of other blobs, or twice in this one), holes.

    ``bytes_sent``: what was written to the store, compressed, with the manifest.
    """

    ref: BlobRef
    bytes_new: int
    bytes_shared: int
    bytes_zero: int
    bytes_sent: int


@dataclass(frozen=True, slots=True)
class Progress:
    """How far long work on the store is; ``total`` 0: not known."""

    step: str
    done: int
    total: int = 0


@dataclass(frozen=True, slots=True)
class Collected:
    """What a garbage collection freed. ``unknown``: objects of which the catalog knows nothing."""

    blobs: int = 0
    chunks: int = 0
    objects_deleted: int = 0
    bytes_freed: int = 0
    unknown_deleted: int = 0


@dataclass(frozen=True, slots=True)
class Damage:
    """An object that is missing or not what it should be, and who is hit.

    ``holders``: who needs those blobs, as they named themselves.
    """

    key: str
    reason: str
    blobs: tuple[str, ...]
    holders: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Verified:
    blobs: int
    chunks: int
    bytes_read: int
    damages: tuple[Damage, ...] = ()


@dataclass(frozen=True, slots=True)
class SpaceUse:
    """``bytes`` on disk or in the store that ``name`` accounts for, in ``count`` files or objects;
    ``place`` says where they are.
    """

    name: str
    bytes: int
    count: int
    place: str = ""


@dataclass(frozen=True, slots=True)
class StoreUsage:
    """Every byte of the blob store by what it is for. ``bytes_logical``: of all blobs, were each
    stored by itself and uncompressed.
    """

    location: str
    blobs: int
    bytes_logical: int
    parts: tuple[SpaceUse, ...]

    @property
    def bytes_stored(self) -> int:
        return sum(part.bytes for part in self.parts)
