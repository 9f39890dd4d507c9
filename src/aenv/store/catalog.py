"""The catalog: one database, the truth about every noun. SQLite by default, in WAL mode.

A transaction is one plain function that runs in a thread: readers beside each other, writers one
after the other in a thread of their own. So no transaction can be open across a network or node
call, a caller that is cancelled does not tear one apart, and a read crosses threads once (an async
driver does so for every step).

What is committed survives any end of the server. It survives a loss of power once :meth:`sync` has
returned, too: a commit that waited for the disk would cost every create milliseconds.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError

from aenv.models.errors import AenvError, DiskFullError, InfrastructureError
from aenv.store import schema

READERS = 4
T = TypeVar("T")


class Catalog:
    """Opened with :meth:`open`, closed with :meth:`close`."""

    def __init__(self, path: Path, engine: Engine) -> None:
        self._path = path
        self._engine = engine
        self._writing_engine = engine.execution_options(aenv_begin="IMMEDIATE")
        self._writer = ThreadPoolExecutor(1, "catalog-writer")
        self._readers = ThreadPoolExecutor(READERS, "catalog-reader")

    @classmethod
    async def open(cls, path: Path) -> Catalog:
        """Open or make the database file and bring its schema up to date."""
        await asyncio.to_thread(_prepare, path)
        engine = create_engine(
            f"sqlite:///{path}",
            pool_size=READERS + 1,
            max_overflow=0,
            pool_reset_on_return=None,
            hide_parameters=True,  # errors are logged, and rows hold secrets
        )
        event.listen(engine, "connect", _on_connect)
        event.listen(engine, "begin", _on_begin)
        return cls(path, engine)

    async def close(self) -> None:
        """Wait for what runs, then let go."""
        for executor in (self._readers, self._writer):
            await asyncio.to_thread(executor.shutdown)
        await asyncio.to_thread(self._engine.dispose)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` to read. Each of its statements by itself sees a consistent state."""
        return await self._run(self._readers, self._engine, work)

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` as the only writer: all of it is committed, or, if it raises, none."""
        return await self._run(self._writer, self._writing_engine, work)

    async def sync(self) -> None:
        """Return when all that was committed before is on the disk. Raises InfrastructureError."""
        await asyncio.to_thread(_sync, self._path)

    async def _run(
        self, executor: ThreadPoolExecutor, engine: Engine, work: Callable[[Connection], T]
    ) -> T:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(executor, _transact, engine, work)


def _transact(engine: Engine, work: Callable[[Connection], T]) -> T:
    try:
        with engine.begin() as connection:
            return work(connection)
    except DBAPIError as error:
        raise _typed(error) from error


def _sync(path: Path) -> None:
    """The log of commits; what has left it for the database was synced on its way."""
    try:
        for one in (path.with_name(f"{path.name}-wal"), path.parent):
            descriptor = os.open(one, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    except FileNotFoundError:
        return
    except OSError as error:
        raise InfrastructureError(f"the catalog is not on the disk: {error}") from error


def _prepare(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    try:
        schema.bring_up_to_date(path)
        path.chmod(0o600)
    except (sqlite3.DatabaseError, DBAPIError) as error:
        raise _typed(error, path) from error


def _on_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in schema.PRAGMAS:
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _on_begin(connection: Connection) -> None:
    """The driver itself begins nothing, and readers need no transaction."""
    if mode := connection.get_execution_options().get("aenv_begin"):
        connection.exec_driver_sql(f"BEGIN {mode}")


def _typed(error: Exception, path: Path | None = None) -> AenvError:
    text = str(getattr(error, "orig", None) or error)
    where = f" ({path})" if path else ""
    if "disk is full" in text:
        return DiskFullError(f"the catalog cannot be written{where}: {text}; free some disk space")
    if "malformed" in text or "not a database" in text:
        return InfrastructureError(
            f"the catalog is damaged{where}: {text}; move the file away to start with an empty one"
        )
    return InfrastructureError(f"the catalog failed{where}: {text}")
