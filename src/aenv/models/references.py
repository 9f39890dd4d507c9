"""Names of images: ``python``, ``ghcr.io/team/tool:1.2``, ``host:5000/a/b@sha256:…``.

The grammar is that of the distribution project; short names mean Docker Hub.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from aenv.models.errors import InvalidRequestError

DOCKER_HUB = "docker.io"
_OFFICIAL = "library"
_TAG = "latest"
_HOST = re.compile(
    r"(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?(?:\.[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*"
    r"|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?\Z"
)
_COMPONENT = r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*"
_REPOSITORY = re.compile(rf"{_COMPONENT}(?:/{_COMPONENT})*\Z")
_TAG_FORM = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}\Z")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}\Z")
_LONGEST = 255


@dataclass(frozen=True, slots=True)
class ImageReference:
    """``tag`` or ``digest`` says which; with both the digest does."""

    registry: str
    repository: str
    tag: str | None
    digest: str | None = None

    @classmethod
    def parse(cls, text: str) -> ImageReference:
        """Raises InvalidRequestError."""
        rest, at, digest = text.partition("@")
        if at and not _DIGEST.match(digest):
            raise _wrong(text, "after @ stands a digest, sha256: and 64 hex digits")
        registry, slash, path = rest.partition("/")
        if not slash or not _is_host(registry):
            registry, path = DOCKER_HUB, rest
        path, colon, tag = path.partition(":")
        if colon and not _TAG_FORM.match(tag):
            raise _wrong(text, "the tag is no tag")
        if registry in ("index.docker.io", "registry-1.docker.io"):
            registry = DOCKER_HUB
        if registry == DOCKER_HUB and "/" not in path:
            path = f"{_OFFICIAL}/{path}"
        if not _HOST.match(registry) or not _REPOSITORY.match(path) or len(path) > _LONGEST:
            raise _wrong(text, "names are lower-case: [REGISTRY/]NAME[:TAG|@DIGEST]")
        return cls(registry.lower(), path, tag or (None if at else _TAG), digest or None)

    @property
    def name(self) -> str:
        """As people write it, with its tag or digest: one name for one image."""
        path = self.repository
        if self.registry == DOCKER_HUB:
            path = path.removeprefix(f"{_OFFICIAL}/")
        else:
            path = f"{self.registry}/{path}"
        return f"{path}@{self.digest}" if self.digest else f"{path}:{self.tag}"


def is_explicit(text: str) -> bool:
    """Whether a name can only be an image's: it has a tag, a digest or a path."""
    return any(mark in text for mark in ":/@")


def _is_host(first: str) -> bool:
    return "." in first or ":" in first or first == "localhost"


def _wrong(text: str, why: str) -> InvalidRequestError:
    return InvalidRequestError(f"{text[:255]!r} names no image: {why}")
