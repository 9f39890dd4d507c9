"""zstd frames that say how long their content is. Blocking; the interpreter is let go of."""

from __future__ import annotations

import zstandard

LEVEL = 3
_OVERHEAD = 1024


def compress(data: bytes) -> bytes:
    return zstandard.ZstdCompressor(level=LEVEL).compress(data)


def decompress(data: bytes, most: int) -> bytes | None:
    """None when it is no whole frame of at most ``most`` bytes: nothing larger is ever made."""
    try:
        if not 0 <= zstandard.frame_content_size(data) <= most:
            return None
        return zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
    except zstandard.ZstdError:
        return None


def largest(length: int) -> int:
    """Bytes that a frame of so much content can have."""
    return length + length // 256 + _OVERHEAD
