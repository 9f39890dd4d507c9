"""Rows of API keys. Only hashes are stored."""

from __future__ import annotations

from dataclasses import asdict

from sqlalchemy import Connection, insert, select, update

from aenv.store.records import ApiKeyRecord
from aenv.store.tables import api_keys


def add(db: Connection, record: ApiKeyRecord) -> None:
    db.execute(insert(api_keys).values(asdict(record)))


def all_keys(db: Connection) -> list[ApiKeyRecord]:
    rows = db.execute(select(api_keys).order_by(api_keys.c.created_at, api_keys.c.id))
    return [ApiKeyRecord(**row._mapping) for row in rows]


def revoke(db: Connection, key_id: str, now: int) -> bool:
    """Tell whether the key was valid until now."""
    result = db.execute(
        update(api_keys)
        .where(api_keys.c.id == key_id, api_keys.c.revoked_at.is_(None))
        .values(revoked_at=now)
    )
    return result.rowcount == 1


def restore(db: Connection, key_id: str) -> None:
    """Make a revoked key valid again (an operator presets it anew)."""
    db.execute(update(api_keys).where(api_keys.c.id == key_id).values(revoked_at=None))
