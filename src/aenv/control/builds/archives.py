"""The files of COPY steps: archives that clients upload under a hash of their content.

A link to upload one is signed and expires; who has it needs no key. What is in an archive is never
looked into here: it is unpacked in the guest. The room they take is bounded, those used longest ago
go first.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import os
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from aenv.control.builds.plans import FILES_HASH
from aenv.control.clocks import SECOND, Clock
from aenv.models.errors import (
    CallerError,
    DiskFullError,
    ForbiddenError,
    InvalidRequestError,
    NotFoundError,
)

LIFE = 3600
_CHUNK = 1 << 20


class ArchiveTooLargeError(CallerError):
    code = "body_too_large"
    status = 413


@dataclass(frozen=True, slots=True)
class Ticket:
    """The right to upload one archive until ``expires`` (Unix seconds)."""

    team: str
    files_hash: str
    expires: int
    signature: str


class Archives:
    """``most``: bytes of all of them; one may take half. ``reserve``: bytes of the disk that stay
    free.
    """

    def __init__(self, folder: Path, clock: Clock, most: int, reserve: int) -> None:
        self._folder = folder
        self._clock = clock
        self._most = most
        self._reserve = reserve
        self._key = secrets.token_bytes(32)
        self._held: Counter[Path] = Counter()

    async def open(self) -> None:
        """Remove what was never uploaded whole."""
        await asyncio.to_thread(self._sweep)

    def has(self, team: str, files_hash: str) -> bool:
        """InvalidRequestError for what is no hash."""
        return self._place(team, files_hash).exists()

    def ticket(self, team: str, files_hash: str) -> Ticket:
        self._place(team, files_hash)
        expires = self._clock.wall() // SECOND + LIFE
        return Ticket(team, files_hash, expires, self._signature(team, files_hash, expires))

    async def receive(
        self, ticket: Ticket, size: int | None, content: AsyncIterator[bytes]
    ) -> None:
        """Keep an upload once it is whole. ForbiddenError, ArchiveTooLargeError, DiskFullError,
        InvalidRequestError when it is shorter than announced.
        """
        self._check(ticket)
        if size is not None:
            self._admit(size)
        place = self._place(ticket.team, ticket.files_hash)
        staged = place.with_name(f".new-{secrets.token_hex(8)}")
        try:
            await asyncio.to_thread(place.parent.mkdir, mode=0o700, parents=True, exist_ok=True)
            with staged.open("xb") as file:
                received = await self._write(file, content)
                await asyncio.to_thread(_flush, file)
            if size is not None and received != size:
                raise InvalidRequestError(f"the upload has {received} bytes, announced were {size}")
            staged.rename(place)
        except OSError as error:
            raise DiskFullError(f"the upload cannot be kept: {error.strerror}") from error
        finally:
            staged.unlink(missing_ok=True)
        await asyncio.to_thread(self._make_room)

    @contextmanager
    def using(self, team: str, files_hash: str) -> Iterator[Path]:
        """It stays for a while. NotFoundError when it is not there (any more)."""
        path = self._place(team, files_hash)
        self._held[path] += 1
        try:
            os.utime(path)
            yield path
        except FileNotFoundError as error:
            raise NotFoundError(
                f"the files {files_hash[:12]}… of a COPY are not on the server; build again, "
                "they are uploaded then"
            ) from error
        finally:
            self._held[path] -= 1

    def _place(self, team: str, files_hash: str) -> Path:
        if not FILES_HASH.match(files_hash):
            raise InvalidRequestError("the hash of files is a SHA-256 in hex digits")
        folder = hashlib.sha256(team.encode()).hexdigest()[:16]
        return self._folder / folder / files_hash

    def _signature(self, team: str, files_hash: str, expires: int) -> str:
        text = f"{team}\0{files_hash}\0{expires}".encode()
        return hmac.new(self._key, text, hashlib.sha256).hexdigest()

    def _check(self, ticket: Ticket) -> None:
        wanted = self._signature(ticket.team, ticket.files_hash, ticket.expires)
        if not hmac.compare_digest(wanted.encode(), ticket.signature.encode()):
            raise ForbiddenError("the link to upload is not of this server, or of an earlier start")
        if self._clock.wall() // SECOND > ticket.expires:
            raise ForbiddenError("the link to upload has expired; ask for another")

    def _admit(self, size: int) -> None:
        if size > self._most // 2:
            raise ArchiveTooLargeError(
                f"the files of one COPY take {size >> 20} MiB; {self._most >> 21} MiB are allowed "
                "(setting builds.files_mb, of which one may take half)"
            )
        status = os.statvfs(_existing(self._folder))
        if size > status.f_bavail * status.f_frsize - self._reserve:
            raise DiskFullError("no room for the files of a build; free some disk space")

    async def _write(self, file: BinaryIO, content: AsyncIterator[bytes]) -> int:
        received = since = 0
        async for chunk in content:
            received += len(chunk)
            since += len(chunk)
            if since >= 8 * _CHUNK or received > self._most // 2:
                self._admit(received)
                since = 0
            await asyncio.to_thread(file.write, chunk)
        return received

    def _make_room(self) -> None:
        found = [(path, path.stat()) for path in self._folder.glob("*/*") if path.is_file()]
        total = sum(status.st_size for _, status in found)
        for path, status in sorted(found, key=lambda one: one[1].st_mtime):
            if total <= self._most:
                return
            if not self._held[path]:
                path.unlink(missing_ok=True)
                total -= status.st_size

    def _sweep(self) -> None:
        for path in self._folder.glob("*/.new-*"):
            path.unlink(missing_ok=True)


async def chunks(path: Path) -> AsyncIterator[bytes]:
    with path.open("rb") as file:
        while chunk := await asyncio.to_thread(file.read, _CHUNK):
            yield chunk


def _flush(file: BinaryIO) -> None:
    file.flush()
    os.fsync(file.fileno())


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
