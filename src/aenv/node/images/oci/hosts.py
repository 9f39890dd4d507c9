"""Which hosts are asked for an image: mirrors first, then its registry; as the operator allows."""

from __future__ import annotations

import fnmatch
import ipaddress
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

from aenv.models.errors import AenvError, InvalidRequestError, NotFoundError
from aenv.models.references import ImageReference
from aenv.models.settings import RegistrySettings
from aenv.node.images.oci import credentials
from aenv.node.images.oci.authorization import LoginError
from aenv.node.images.oci.manifests import BadImageError, Descriptor
from aenv.node.images.oci.registries import Patience, RegistryError, RegistrySource
from aenv.node.images.oci.sources import Received, Source

_MIRROR = Patience(attempts=2)
_NEXT = (RegistryError, LoginError, BadImageError, NotFoundError)

T = TypeVar("T")


class HostsSource(Source):
    """The first source that can. Where all fail, the last word is the registry's."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = list(sources)
        self.shown = sources[0].shown

    async def top(self) -> tuple[bytes, str]:
        return await self._first(lambda source: source.top())

    async def document(self, descriptor: Descriptor, limit: int) -> bytes:
        return await self._first(lambda source: source.document(descriptor, limit))

    async def blob(self, descriptor: Descriptor, scratch: Path, received: Received) -> Path:
        return await self._first(lambda source: source.blob(descriptor, scratch, received))

    async def close(self) -> None:
        for source in self._sources:
            await source.close()

    async def _first(self, ask: Callable[[Source], Awaitable[T]]) -> T:
        failure: AenvError | None = None
        for source in self._sources:
            try:
                return await ask(source)
            except _NEXT as error:
                failure = error
        assert failure is not None
        raise failure


def open_registry(
    reference: ImageReference, settings: RegistrySettings, patience: Patience | None = None
) -> Source:
    """Raises InvalidRequestError where the operator allows no images of this registry."""
    if not any(fnmatch.fnmatch(reference.registry, one) for one in settings.allow):
        raise InvalidRequestError(
            f"{reference.name}: images of {reference.registry} are not allowed here; allowed are "
            f"{', '.join(settings.allow)} (setting registry.allow)"
        )
    mirrors = [
        host
        for registry, _, host in (one.partition("=") for one in settings.mirrors)
        if registry == reference.registry
    ]
    return HostsSource(
        [
            RegistrySource(
                reference,
                host,
                credentials.find(host),
                insecure=host in settings.insecure or _is_loopback(host),
                patience=_MIRROR if host in mirrors else patience,
            )
            for host in (*mirrors, reference.registry)
        ]
    )


def _is_loopback(host: str) -> bool:
    name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
    try:
        return name == "localhost" or ipaddress.ip_address(name.strip("[]")).is_loopback
    except ValueError:
        return False
