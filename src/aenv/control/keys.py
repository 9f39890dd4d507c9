"""API keys: who may call. Keys are hashed in the catalog; the valid ones are held in memory."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from dataclasses import dataclass

import structlog
from sqlalchemy import Connection

from aenv.control.clocks import Clock
from aenv.models.errors import NotFoundError, UnauthorizedError
from aenv.models.folders import Folders
from aenv.models.ids import new_api_key, new_object_id
from aenv.store import credentials
from aenv.store import keys as rows
from aenv.store.catalog import Catalog
from aenv.store.records import ApiKeyRecord

log = structlog.get_logger()
DEFAULT_TEAM = "default"
SHORT_KEY = 16
"""Characters below which a key that somebody chose draws a warning."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who a request comes from."""

    key_id: str
    team: str
    admin: bool


class Keys:
    """``local`` is the key the CLI and SDK of this machine use."""

    def __init__(self, catalog: Catalog, clock: Clock) -> None:
        self._catalog = catalog
        self._clock = clock
        self._valid: dict[str, ApiKeyRecord] = {}
        self._changing = asyncio.Lock()
        self.local = ""

    def authenticate(self, key: str) -> Caller:
        """UnauthorizedError for a key that is wrong or revoked.

        The look-up goes by the hash of the key, so its time tells nothing about valid keys.
        """
        digest = _hash(key)
        record = self._valid.get(digest)
        if record is None or not hmac.compare_digest(record.hash, digest):
            raise UnauthorizedError(
                "the API key is not valid (header X-API-Key); on the server's machine "
                "`aenv auth show --key` prints one that is"
            )
        return Caller(record.id, record.team, record.admin)

    def is_valid(self, text: str) -> bool:
        """Whether ``text`` is a key of this server."""
        return _hash(text) in self._valid

    async def open(self, folders: Folders, preset: str | None) -> None:
        """Read the keys; take over the operator's preset, else find or make the local key."""
        await self._reload()
        if preset is not None:
            if len(preset) < SHORT_KEY:
                log.warning("the API key set by the operator is short: it can be guessed")
            self.local = preset
            await self._install(preset, "preset")
            return
        stored = await asyncio.to_thread(credentials.local_key, folders)
        if stored is not None and _hash(stored) in self._valid:
            self.local = stored
            return
        self.local = new_api_key()
        await self._install(self.local, "local")

    async def publish(self, folders: Folders, url: str) -> None:
        """Write the local key and ``url`` where the CLI and SDK of this machine look."""
        await asyncio.to_thread(credentials.store_local, folders, url=url, api_key=self.local)

    async def create(self, name: str, *, admin: bool = False) -> tuple[str, ApiKeyRecord]:
        """A new key; its text is shown this once."""
        key = new_api_key()
        record = self._record(key, name=name, origin="user", admin=admin)
        async with self._changing:
            await self._catalog.write(lambda db: rows.add(db, record))
            await self._reload()
        return key, record

    async def all(self) -> list[ApiKeyRecord]:
        """Valid and revoked ones, the oldest first."""
        return await self._catalog.read(rows.all_keys)

    async def revoke(self, key_id: str) -> None:
        """From now on the key is refused. NotFoundError when there is no such valid key."""
        async with self._changing:
            now = self._clock.wall()
            found = await self._catalog.write(lambda db: rows.revoke(db, key_id, now))
            await self._reload()
        if not found:
            raise NotFoundError(f"there is no valid API key with id {key_id!r}")

    async def _install(self, key: str, origin: str) -> None:
        """Make ``key`` valid and revoke earlier keys of the same origin, which it replaces."""
        record = self._record(key, name=origin, origin=origin, admin=True)

        def install(db: Connection) -> None:
            known = {old.hash: old for old in rows.all_keys(db)}
            for old in known.values():
                if old.origin == origin and old.hash != record.hash:
                    rows.revoke(db, old.id, self._clock.wall())
            if record.hash in known:
                rows.restore(db, known[record.hash].id)
            else:
                rows.add(db, record)

        async with self._changing:
            await self._catalog.write(install)
            await self._reload()

    async def _reload(self) -> None:
        found = await self._catalog.read(rows.all_keys)
        self._valid = {key.hash: key for key in found if key.revoked_at is None}

    def _record(self, key: str, *, name: str, origin: str, admin: bool) -> ApiKeyRecord:
        return ApiKeyRecord(
            id=new_object_id("k"),
            hash=_hash(key),
            mask=f"{key[:4]}…{key[-4:]}" if len(key) >= 16 else "…",
            name=name,
            origin=origin,
            team=DEFAULT_TEAM,
            admin=admin,
            created_at=self._clock.wall(),
        )


def _hash(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
