"""Where images come from: the port, and finding an image behind an index of platforms."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path

from aenv.node.images.oci import manifests
from aenv.node.images.oci.manifests import BadImageError, Config, Described, Descriptor

Received = Callable[[int], None]
"""Called with the bytes of a blob that are there."""
_DEPTH = 3


class Source(ABC):
    """One image. Whatever it returns has the digest that was asked for."""

    shown: str
    """The image's name, for messages."""

    @abstractmethod
    async def top(self) -> tuple[bytes, str]:
        """The document the name stands for, and its media type."""

    @abstractmethod
    async def document(self, descriptor: Descriptor, limit: int) -> bytes:
        """A small blob or manifest."""

    @abstractmethod
    async def blob(self, descriptor: Descriptor, scratch: Path, received: Received) -> Path:
        """A file with the blob: ``scratch``, where an earlier attempt may have left a part, or one
        of the source's own.
        """

    async def close(self) -> None:  # noqa: B027 - nothing is held open by default
        """Let go of connections."""


async def describe(source: Source) -> Described:
    """Follow indexes to the manifest for this host. Raises BadImageError."""
    content, kind = await source.top()
    for _ in range(_DEPTH):
        if kind in manifests.MANIFESTS:
            manifest = manifests.read(manifests.Manifest, content, source.shown)
            manifests.check_manifest(manifest, source.shown)
            return Described(manifests.digest_of(content).removeprefix("sha256:"), manifest)
        if kind not in manifests.INDEXES:
            raise BadImageError(f"{source.shown} is {kind[:100]!r}, which is no image or index")
        index = manifests.read(manifests.Index, content, source.shown)
        chosen = manifests.choose(index, source.shown)
        content = await source.document(chosen, manifests.MOST_MANIFEST)
        kind = manifests.type_of(content, chosen.media_type)
    raise BadImageError(f"{source.shown} is an index of indexes of indexes")


async def configuration(source: Source, image: Described) -> Config:
    """Raises BadImageError."""
    content = await source.document(image.manifest.config, manifests.MOST_CONFIG)
    config = manifests.read(Config, content, f"the configuration of {source.shown}")
    manifests.check_config(config, len(image.manifest.layers), source.shown)
    return config


def check_digest(content: bytes, descriptor: Descriptor, what: str) -> bytes:
    """``content`` itself. Raises BadImageError."""
    if manifests.digest_of(content) != descriptor.digest:
        raise BadImageError(f"{what} delivers other bytes than {descriptor.digest[:19]}… names")
    return content
