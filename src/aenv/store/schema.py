"""Bringing a database's schema up to date; alembic is imported only when there is work to do."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from aenv.models.errors import InfrastructureError
from aenv.store.tables import HEAD

PRAGMAS = ("journal_mode=WAL", "synchronous=NORMAL", "foreign_keys=ON", "busy_timeout=10000")
MIGRATIONS = Path(__file__).with_name("migrations")


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
    """Run the migrations that are missing. InfrastructureError when a newer version of aenv made
    the database.
    """
    found = current(path)
    if found == HEAD:
        return
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
