"""Bringing a database's schema up to date.

A new one is made from the tables at once; alembic, which takes long to import, migrates older ones.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from aenv.models.errors import InfrastructureError
from aenv.store.tables import HEAD, metadata

PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=10000")
MIGRATIONS = Path(__file__).with_name("migrations")
_VERSION_TABLE = """\
CREATE TABLE alembic_version (
    version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
)"""  # as alembic makes it


def current(path: Path) -> str | None:
    """The migration a database stands at; None when it is empty or absent."""
    with closing(sqlite3.connect(path)) as connection:
        try:
            row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return None
            raise
    return str(row[0]) if row else None


def bring_up_to_date(path: Path) -> None:
    """Make the tables, or run the migrations that are missing. InfrastructureError when a newer
    version of aenv made the database.
    """
    found = current(path)
    if found is None:
        _create(path)
    elif found != HEAD:
        migrate(path, found)


def migrate(path: Path, found: str | None = None) -> None:
    """Run the migrations after ``found``, all of them when it is None."""
    from alembic import command
    from alembic.config import Config
    from alembic.util import CommandError

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["path"] = path
    try:
        command.upgrade(config, "head")
    except CommandError as error:
        raise InfrastructureError(
            f"the catalog {path} stands at schema {found}, which this version does not know "
            f"({HEAD} is its newest); run the newer aenv that wrote it, or name another data folder"
        ) from error


def _create(path: Path) -> None:
    """All tables and the version in one transaction: a crash leaves all of them or none."""
    engine = create_engine(
        f"sqlite:///{path}", poolclass=NullPool, connect_args={"isolation_level": None}
    )
    with engine.connect() as connection:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        metadata.create_all(connection, checkfirst=False)
        connection.exec_driver_sql(_VERSION_TABLE)
        connection.exec_driver_sql("INSERT INTO alembic_version VALUES (?)", (HEAD,))
        connection.commit()
