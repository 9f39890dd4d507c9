"""The catalog: one database, the truth about every noun. SQLite by default, in WAL mode.

Concurrency: readers run beside one writer. ``write()`` takes the writer's place before its first
statement (``BEGIN IMMEDIATE``), so a read-modify-write inside it cannot lose an update. A
transaction is never open across a network or node call: it holds up every other writer.
``in_transaction()`` lets tests prove that.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from aenv.models.errors import AenvError, DiskFullError, InfrastructureError
from aenv.store import schema

_depth: ContextVar[int] = ContextVar("aenv_catalog_transactions", default=0)


def in_transaction() -> bool:
    """Whether the running task has a catalog transaction open."""
    return _depth.get() > 0


class Catalog:
    """Opened with :meth:`open`, closed with :meth:`close`."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine = engine
        self._writer = asyncio.Lock()

    @classmethod
    async def open(cls, path: Path) -> Catalog:
        """Open or make the database file and bring its schema up to date."""
        await asyncio.to_thread(_prepare, path)
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}", pool_size=8, max_overflow=0)
        event.listen(engine.sync_engine, "connect", _on_connect)
        event.listen(engine.sync_engine, "begin", _on_begin)
        return cls(engine)

    async def close(self) -> None:
        await self._engine.dispose()

    @asynccontextmanager
    async def read(self) -> AsyncIterator[AsyncConnection]:
        """One consistent view."""
        async with self._transaction(self._engine) as connection:
            yield connection

    @asynccontextmanager
    async def write(self) -> AsyncIterator[AsyncConnection]:
        """A transaction that commits when the block ends well, and is undone otherwise."""
        async with self._writer, self._transaction(self._immediate()) as connection:
            yield connection

    def _immediate(self) -> AsyncEngine:
        return self._engine.execution_options(aenv_begin="IMMEDIATE")

    @asynccontextmanager
    async def _transaction(self, engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
        token = _depth.set(_depth.get() + 1)
        try:
            async with engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise _typed(error) from error
        finally:
            _depth.reset(token)


def _prepare(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        schema.bring_up_to_date(path)
        path.chmod(0o600)
    except sqlite3.DatabaseError as error:
        raise _typed(error, path) from error


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in schema.PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_begin(connection: Any) -> None:
    mode = connection.get_execution_options().get("aenv_begin", "")
    connection.exec_driver_sql(f"BEGIN {mode}".strip())


def _typed(error: Exception, path: Path | None = None) -> AenvError:
    text = str(getattr(error, "orig", None) or error)
    where = f" ({path})" if path else ""
    if "full" in text:
        return DiskFullError(f"the catalog cannot be written{where}: {text}; free some disk space")
    if "malformed" in text or "not a database" in text:
        return InfrastructureError(
            f"the catalog is damaged{where}: {text}; move the file away to start with an empty one"
        )
    return InfrastructureError(f"the catalog failed{where}: {text}")
