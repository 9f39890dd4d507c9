"""One object store: a folder, or a prefix of a bucket. Its failures are ours, named.

A write is whole or absent, and survives a power cut.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore import exceptions

from aenv.models.errors import (
    BlobDamagedError,
    BlobMissingError,
    BlobStoreDeniedError,
    BlobStoreError,
    BlobStoreUnreachableError,
    DiskFullError,
    HostSetupError,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

PATIENCE = 150.0
"""Seconds for one request with its retries."""
LISTED = 1000
_STAGED = re.compile(r"#\d+\Z")


@dataclass(frozen=True, slots=True)
class Listed:
    key: str
    size: int
    modified: datetime


class Objects:
    """``location``: what messages call it; ``folder``: where it is, when it is a folder."""

    def __init__(self, store: ObjectStore, location: str, folder: Path | None = None) -> None:
        self._store = store
        self.location = location
        self.folder = folder

    async def put(self, key: str, data: bytes) -> None:
        with self._errors(key), self._somewhere():
            async with asyncio.timeout(PATIENCE):
                await obstore.put_async(self._store, key, data, use_multipart=False)
                if self.folder is not None:
                    await asyncio.to_thread(_sync, self.folder / key)

    async def create(self, key: str, data: bytes) -> bool:
        """False when it was there already. Only for what is made once in a store's life."""
        with self._errors(key), self._somewhere():
            async with asyncio.timeout(PATIENCE):
                try:
                    await obstore.put_async(self._store, key, data, mode="create")
                except exceptions.AlreadyExistsError:
                    return False
                except exceptions.NotSupportedError:  # an S3 without conditions
                    await obstore.put_async(self._store, key, data)
        return True

    async def get(self, key: str, most: int) -> bytes:
        """Raises BlobMissingError; BlobDamagedError when it is larger than ``most``."""
        with self._errors(key):
            async with asyncio.timeout(PATIENCE):
                found = await obstore.get_async(self._store, key)
                if found.meta["size"] > most:
                    raise BlobDamagedError(
                        f"{key} in {self.location} has {found.meta['size']} bytes, more than it can"
                    )
                return bytes(await found.bytes_async())

    async def delete(self, keys: Sequence[str]) -> None:
        """Those that are not there are fine."""
        if self.folder is None:
            with self._errors(keys[0] if keys else ""):
                async with asyncio.timeout(PATIENCE):
                    await obstore.delete_async(self._store, list(keys))
            return
        for key in keys:
            with self._errors(key):
                try:
                    await obstore.delete_async(self._store, key)
                except FileNotFoundError:
                    continue

    async def listed(self, prefix: str | None = None) -> AsyncIterator[list[Listed]]:
        """In batches of up to LISTED."""
        stream = obstore.list(self._store, prefix, chunk_size=LISTED).__aiter__()
        while True:
            with self._errors(prefix or ""):
                try:
                    async with asyncio.timeout(PATIENCE):
                        batch = await anext(stream)
                except StopAsyncIteration:
                    return
            yield [Listed(one["path"], one["size"], one["last_modified"]) for one in batch]

    async def staged(self) -> list[Path]:
        """What writes that were killed in the middle left in a folder; no object, never listed."""
        if self.folder is None:
            return []
        return await asyncio.to_thread(lambda: list(_staged(str(self.folder))))

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise BlobMissingError(f"{key} is not in the blob store at {self.location}") from error
        except TimeoutError as error:
            raise self._unreachable(f"no answer within {PATIENCE:g} s") from error
        except exceptions.BaseError as error:
            raise self._typed(error) from error
        except OSError as error:
            raise self._typed(error) from error

    @contextmanager
    def _somewhere(self) -> Iterator[None]:
        """Writing fails like that only where there is nothing to write into."""
        try:
            yield
        except FileNotFoundError as error:
            raise HostSetupError(
                f"there is no place for blobs at {self.location}: make the bucket or mount the "
                "folder, or correct store.bucket or store.folder"
            ) from error

    def _typed(self, error: Exception) -> BlobStoreError | DiskFullError:
        text = str(error).split("\n\nDebug source")[0].strip()
        where = f"the blob store at {self.location}"
        if "os error 28" in text or "os error 122" in text or "No space left" in text:
            return DiskFullError(f"{where} is full; free some disk space or run: aenv store gc")
        denied = (exceptions.PermissionDeniedError, exceptions.UnauthenticatedError)
        if isinstance(error, denied) or "os error 13" in text or "os error 30" in text:
            advice = "check the permissions of the folder" if self.folder else "check its keys"
            return BlobStoreDeniedError(f"{where} refuses us ({_brief(text)}); {advice}")
        if self.folder is None and isinstance(error, exceptions.GenericError):
            return self._unreachable(_brief(text))
        return BlobStoreError(f"{where} failed: {_brief(text)}")

    def _unreachable(self, why: str) -> BlobStoreUnreachableError:
        remedy = "its endpoint (store.endpoint) and the network"
        if self.folder is not None:
            remedy = "the file system it is on"
        return BlobStoreUnreachableError(
            f"the blob store at {self.location} does not serve us ({why}); check {remedy}"
        )


def _brief(text: str) -> str:
    """One line without the store's own page of XML."""
    return " ".join(text.partition("<?xml")[0].split())[:400].rstrip(" :-")


def _staged(folder: str) -> Iterator[Path]:
    for parent, _, names in os.walk(folder):
        for name in names:
            if _STAGED.search(name):
                yield Path(parent, name)


def _sync(path: Path) -> None:
    """A file, and its names up to the folder of its kind."""
    for one in (path, path.parent, path.parent.parent):
        descriptor = os.open(one, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
