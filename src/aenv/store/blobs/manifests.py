"""The manifest of a blob: of which chunks it is made. Stored last, so whoever sees it sees all.

Object ``blobs/<id[:2]>/<id>``: a zstd frame of JSON ``{"format": 1, "length", "digest", "nonce",
"chunks": [[length, "<sha256>-<suffix>"] | [length], …]}``, in order of content; a pair of one is a
hole. ``id`` is the sha256 of the JSON; ``nonce`` makes every manifest a new object. Chunks are
zstd frames under ``chunks/<sha256[:2]>/<sha256>-<suffix>``, sha256 that of the plain content.
"""

from __future__ import annotations

import bisect
import hashlib
import json
import re
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from aenv.models.blobs import BlobRef
from aenv.models.errors import BlobDamagedError, InvalidRequestError
from aenv.store.blobs import frames
from aenv.store.blobs.chunks import LONGEST

FORMAT = 1
LARGEST = 256 << 20
"""Bytes of JSON: a blob of about three TiB."""
BLOBS, CHUNKS = "blobs", "chunks"
_ID = re.compile(r"[0-9a-f]{64}\Z")
_NAME = re.compile(r"[0-9a-f]{64}-[0-9a-f]{1,32}\Z")


@dataclass(frozen=True, slots=True)
class Part:
    """A run of a blob's content. ``name``: of its chunk; None for a hole."""

    offset: int
    length: int
    name: str | None

    @property
    def digest(self) -> str:
        assert self.name is not None
        return self.name.partition("-")[0]


@dataclass(frozen=True)
class Manifest:
    ref: BlobRef
    parts: tuple[Part, ...]

    @cached_property
    def _offsets(self) -> list[int]:
        return [part.offset for part in self.parts]

    def within(self, offset: int, length: int) -> Iterator[Part]:
        """The parts that hold these bytes."""
        first = max(0, bisect.bisect_right(self._offsets, offset) - 1)
        for part in self.parts[first:]:
            if part.offset >= offset + length:
                return
            yield part


def key_of(blob_id: str) -> str:
    if not _ID.match(blob_id):
        raise InvalidRequestError(f"{blob_id[:80]!r} is no blob id")
    return f"{BLOBS}/{blob_id[:2]}/{blob_id}"


def chunk_key(name: str) -> str:
    return f"{CHUNKS}/{name[:2]}/{name}"


def encode(digest: str, length: int, parts: Sequence[Part]) -> tuple[BlobRef, bytes]:
    """The blob's reference and the object of its manifest."""
    content = {
        "format": FORMAT,
        "length": length,
        "digest": digest,
        "nonce": secrets.token_hex(8),
        "chunks": [[p.length] if p.name is None else [p.length, p.name] for p in parts],
    }
    plain = json.dumps(content, separators=(",", ":")).encode()
    if len(plain) > LARGEST:
        raise InvalidRequestError(f"a blob of {length} bytes in {len(parts)} parts is too large")
    return BlobRef(hashlib.sha256(plain).hexdigest(), digest, length), frames.compress(plain)


def decode(blob_id: str, data: bytes) -> Manifest:
    """Raises BlobDamagedError."""
    plain = frames.decompress(data, LARGEST)
    if plain is None or hashlib.sha256(plain).hexdigest() != blob_id:
        raise BlobDamagedError(f"the manifest of blob {blob_id} is damaged")
    try:
        return _parsed(blob_id, json.loads(plain))
    except (ValueError, KeyError, TypeError) as error:
        raise BlobDamagedError(f"the manifest of blob {blob_id} makes no sense: {error}") from error


def _parsed(blob_id: str, content: dict[str, object]) -> Manifest:
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']}, which this version does not know")
    chunks = content["chunks"]
    length = content["length"]
    if not isinstance(chunks, list) or not isinstance(length, int):
        raise ValueError("not a list of chunks")
    parts = tuple(_parts(chunks))
    if length != (parts[-1].offset + parts[-1].length if parts else 0):
        raise ValueError("its chunks do not add up to its length")
    return Manifest(BlobRef(blob_id, str(content["digest"]), length), parts)


def _parts(chunks: list[list[object]]) -> Iterator[Part]:
    offset = 0
    for length, *names in chunks:
        name = names[0] if names else None
        if not isinstance(length, int) or length <= 0 or (name and length > LONGEST):
            raise ValueError(f"a chunk of length {length!r}")
        if name is not None and not (isinstance(name, str) and _NAME.match(name)):
            raise ValueError(f"a chunk named {name!r}")
        yield Part(offset, length, name)
        offset += length
