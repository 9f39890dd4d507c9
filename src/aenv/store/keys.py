"""Rows of API keys. Only hashes are stored."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from aenv.store.records import ApiKeyRecord
from aenv.store.tables import api_keys


async def add(db: AsyncConnection, record: ApiKeyRecord) -> None:
    await db.execute(insert(api_keys).values(asdict(record)))


async def all_keys(db: AsyncConnection) -> list[ApiKeyRecord]:
    rows = await db.execute(select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id))
    return [ApiKeyRecord(**row._mapping) for row in rows]


async def revoke(db: AsyncConnection, key_id: str, now: int) -> bool:
    """Tell whether the key was valid until now."""
    result = await db.execute(
        update(api_keys)
        .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
        .values(revoked_at=now)
    )
    return result.rowcount == 1


async def restore(db: AsyncConnection, key_id: str) -> None:
    """Make a revoked key valid again (an operator presets it anew)."""
    await db.execute(update(api_keys).where(api_keys.c.id == key_id).values(revoked_at=None))
