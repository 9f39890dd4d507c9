"""The distribution protocol (v2): manifests and blobs from a registry or its mirrors.

What fails for the moment is tried again with growing pauses; a blob goes on where it stopped.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from aenv.models.errors import DiskFullError, NotFoundError, TemplateBuildError
from aenv.models.references import DOCKER_HUB, ImageReference
from aenv.node.images.oci import manifests
from aenv.node.images.oci.authorization import Authorizer
from aenv.node.images.oci.credentials import Credentials
from aenv.node.images.oci.manifests import BadImageError, Descriptor
from aenv.node.images.oci.sources import Received, Source, check_digest

_ACCEPT = ", ".join((*manifests.MANIFESTS, *manifests.INDEXES))
_HUB_HOST = "registry-1.docker.io"
_REDIRECTS = 5
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
_CONNECTS = 3


class RegistryError(TemplateBuildError):
    """A registry cannot be reached, refuses, or answers what no registry may."""

    code = "registry_failed"


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds, and how often in a row something may fail without any byte received."""

    connect: float = 15.0
    read: float = 60.0
    attempts: int = 6
    first_pause: float = 0.5
    longest_pause: float = 30.0


class RegistrySource(Source):
    """``host`` is where the registry, or a mirror of it, is asked. ``insecure``: by plain HTTP."""

    def __init__(
        self,
        reference: ImageReference,
        host: str,
        credentials: Credentials | None,
        *,
        insecure: bool,
        patience: Patience | None = None,
    ) -> None:
        self.shown = reference.name
        self._reference = reference
        self._patience = patience or Patience()
        scheme = "http" if insecure else "https"
        self._host = _HUB_HOST if host == DOCKER_HUB else host
        self._base = f"{scheme}://{self._host}/v2/{reference.repository}"
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(self._patience.read, connect=self._patience.connect),
            follow_redirects=False,
            headers={"user-agent": "aenv"},
        )
        self._authorizer = Authorizer(self._client, credentials, reference.repository)

    async def close(self) -> None:
        await self._client.aclose()

    async def top(self) -> tuple[bytes, str]:
        wanted = self._reference.digest or self._reference.tag
        content, kind = await self._small(f"manifests/{wanted}", manifests.MOST_MANIFEST)
        if self._reference.digest:
            check_digest(content, Descriptor(digest=self._reference.digest, size=0), self.shown)
        return content, manifests.type_of(content, kind)

    async def document(self, descriptor: Descriptor, limit: int) -> bytes:
        kind = "manifests" if descriptor.media_type in _DOCUMENTS else "blobs"
        content, _ = await self._small(f"{kind}/{descriptor.digest}", limit)
        return check_digest(content, descriptor, self.shown)

    async def blob(self, descriptor: Descriptor, scratch: Path, received: Received) -> Path:
        for last in (False, True):
            await self._complete(descriptor, scratch, received)
            found = await asyncio.to_thread(_sha256, scratch)
            if found == descriptor.digest.removeprefix("sha256:"):
                return scratch
            await asyncio.to_thread(scratch.unlink)
            if last:
                raise BadImageError(
                    f"{self.shown} delivers other bytes than {descriptor.digest[:19]}… names"
                )
        raise AssertionError

    async def _complete(self, descriptor: Descriptor, scratch: Path, received: Received) -> None:
        """Until the file has its size; every byte received renews the patience."""
        failures = 0
        while (have := _size(scratch)) != descriptor.size or have == 0:
            try:
                await self._continue(descriptor, scratch, received)
            except (httpx.TransportError, _PassingError) as error:
                failures = 1 if _size(scratch) > have else failures + 1
                await self._pause(failures, error)
            if descriptor.size == 0:
                return

    async def _continue(self, descriptor: Descriptor, scratch: Path, received: Received) -> None:
        have = _size(scratch)
        if have > descriptor.size:
            await asyncio.to_thread(scratch.unlink)
            have = 0
        headers = {"accept-encoding": "identity"}
        if have:
            headers["range"] = f"bytes={have}-"
        async with self._get(f"blobs/{descriptor.digest}", headers) as answer:
            if answer.status_code == 416:
                await asyncio.to_thread(scratch.unlink, missing_ok=True)
                raise _PassingError("it does not know the range")
            goes_on = answer.status_code == 206 and answer.headers.get(
                "content-range", ""
            ).startswith(f"bytes {have}-")
            await self._receive(answer, scratch, have if goes_on else 0, descriptor.size, received)

    async def _receive(
        self, answer: httpx.Response, scratch: Path, have: int, size: int, received: Received
    ) -> None:
        try:
            with scratch.open("r+b" if have else "wb") as file:
                file.seek(have)
                async for chunk in answer.aiter_raw():
                    have += len(chunk)
                    if have > size:
                        raise BadImageError(f"{self.shown} delivers more than {size} bytes of it")
                    file.write(chunk)
                    received(have)
        except OSError as error:
            raise DiskFullError(f"a layer of {self.shown} cannot be kept: {error}") from error
        if have < size:
            raise _PassingError(f"the transfer ended after {have} of {size} bytes")

    async def _small(self, path: str, limit: int) -> tuple[bytes, str]:
        failures = 0
        while True:
            try:
                async with self._get(path, {"accept": _ACCEPT}) as answer:
                    content = bytearray()
                    async for chunk in answer.aiter_bytes():
                        content += chunk
                        if len(content) > limit:
                            raise BadImageError(
                                f"{self.shown}: {path} is larger than {limit} bytes"
                            )
                    return bytes(content), answer.headers.get("content-type", "")
            except (httpx.TransportError, _PassingError) as error:
                failures += 1
                await self._pause(failures, error)

    @asynccontextmanager
    async def _get(self, path: str, headers: dict[str, str]) -> AsyncIterator[httpx.Response]:
        """A reply of 200, 206 or 416, after authorization and redirections."""
        url = httpx.URL(f"{self._base}/{path}")
        for attempt in (1, 2):
            own = {**headers, **self._authorizer.header()}
            async with self._redirected(url, own) as answer:
                if answer.status_code == 401 and attempt == 1:
                    await self._authorizer.answer(url, answer.headers.get("www-authenticate", ""))
                    continue
                await self._judge(answer, path)
                yield answer
                return

    @asynccontextmanager
    async def _redirected(
        self, url: httpx.URL, headers: dict[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """Another host is not told who we are; nothing leads from HTTPS to HTTP."""
        for _ in range(_REDIRECTS):
            async with self._client.stream("GET", url, headers=headers) as answer:
                if not answer.has_redirect_location:
                    yield answer
                    return
                target = url.join(answer.headers["location"])
            if target.scheme not in ("http", "https") or (
                url.scheme == "https" and target.scheme != "https"
            ):
                raise RegistryError(f"{self.shown}: the registry redirects from HTTPS to {target}")
            if (target.host, target.port, target.scheme) != (url.host, url.port, url.scheme):
                headers = {k: v for k, v in headers.items() if k != "authorization"}
            url = target
        raise RegistryError(f"{self.shown}: the registry redirects more than {_REDIRECTS} times")

    async def _judge(self, answer: httpx.Response, path: str) -> None:
        code = answer.status_code
        if code in (200, 206, 416):
            return
        if code in _PASSING:
            raise _PassingError(f"HTTP {code}", answer.headers.get("retry-after", ""))
        if code in (401, 403):
            raise RegistryError(
                f"{self.shown}: the registry refuses it (HTTP {code}); it does not exist, or log "
                "in with credentials that may read it (~/.docker/config.json of the server's user)"
            )
        if code == 404:
            raise NotFoundError(f"{self.shown}: the registry has no {path[:100]}")
        raise RegistryError(f"{self.shown}: the registry answers HTTP {code} for {path[:100]}")

    async def _pause(self, failures: int, error: Exception) -> None:
        """Raises RegistryError when patience ends, and at once where the certificate is wrong."""
        said = str(error) or type(error).__name__
        unreached = isinstance(error, httpx.ConnectError) and failures >= _CONNECTS
        wrong = isinstance(error.__cause__, ssl.SSLError)
        if failures >= self._patience.attempts or unreached or wrong:
            raise RegistryError(
                f"{self.shown}: {self._host} failed {failures} times in a row: {said}"
            ) from error
        pause = min(self._patience.first_pause * 2**failures, self._patience.longest_pause)
        asked = error.retry_after if isinstance(error, _PassingError) else 0.0
        await asyncio.sleep(max(pause * random.uniform(0.5, 1), min(asked, 60.0)))  # noqa: S311


_DOCUMENTS = (*manifests.MANIFESTS, *manifests.INDEXES)


class _PassingError(Exception):
    def __init__(self, message: str, retry_after: str = "") -> None:
        super().__init__(message)
        self.retry_after = float(retry_after) if retry_after.isdecimal() else 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
