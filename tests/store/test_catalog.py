"""The catalog: transactions, the schema's way to the present, damage and full disks."""

from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from sqlalchemy import Connection, text
from sqlalchemy.exc import DBAPIError

from aenv.models.errors import DiskFullError, InfrastructureError
from aenv.store import schema
from aenv.store.catalog import Catalog
from aenv.store.tables import HEAD, metadata

COUNT = text("SELECT count FROM template_uses WHERE template = 'a'")
ADD = text("INSERT INTO template_uses VALUES ('a', 0, 0)")


def run(code: str, path: Path) -> int:
    """Run ``code`` as a program over our sources; its exit status."""
    command = [sys.executable, "-c", code, str(path)]
    sources = {"PYTHONPATH": str(Path("src").absolute())}
    return subprocess.run(command, env=sources, check=False).returncode


async def test_a_failed_transaction_leaves_nothing(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path / "c.sqlite")

    def fail(db: Connection) -> None:
        db.execute(ADD)
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        await catalog.write(fail)
    assert await catalog.read(lambda db: db.scalar(COUNT)) is None
    await catalog.close()


async def test_writers_at_once_lose_no_update(tmp_path: Path) -> None:
    """Also not those of another process: the writer's place is taken before the first read."""
    first = await Catalog.open(tmp_path / "c.sqlite")
    second = await Catalog.open(tmp_path / "c.sqlite")
    await first.write(lambda db: db.execute(ADD).rowcount)

    def increment(db: Connection) -> None:
        seen = db.scalar(COUNT)
        db.execute(text("UPDATE template_uses SET count = :n"), {"n": int(seen or 0) + 1})

    await asyncio.gather(*(c.write(increment) for _ in range(50) for c in (first, second)))

    assert await first.read(lambda db: db.scalar(COUNT)) == 100
    await first.close()
    await second.close()


async def test_a_transaction_is_whole_though_its_caller_was_cancelled(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path / "c.sqlite")
    call = asyncio.create_task(catalog.write(lambda db: db.execute(ADD).rowcount))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call})
    await catalog.close()

    again = await Catalog.open(tmp_path / "c.sqlite")
    assert await again.read(lambda db: db.scalar(COUNT)) in (0, None)
    await again.close()


async def test_what_was_committed_survives_kill_9(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, sys; from pathlib import Path\n"
        "from sqlalchemy import text; from aenv.store.catalog import Catalog\n"
        "async def main():\n"
        "    c = await Catalog.open(Path(sys.argv[1]))\n"
        '    await c.write(lambda db: db.execute(text("INSERT INTO template_uses VALUES'
        " ('a', 7, 0)\")).rowcount)\n"
        "    os.kill(os.getpid(), 9)\n"
        "asyncio.run(main())\n"
    )
    path = tmp_path / "c.sqlite"
    await asyncio.to_thread(run, code, path)

    catalog = await Catalog.open(path)
    assert await catalog.read(lambda db: db.scalar(COUNT)) == 7
    await catalog.close()


async def test_only_the_owner_may_read_the_file(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path / "data" / "c.sqlite")
    assert (tmp_path / "data" / "c.sqlite").stat().st_mode & 0o077 == 0
    assert (tmp_path / "data").stat().st_mode & 0o077 == 0
    await catalog.close()


async def test_a_full_disk_is_said_so(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path / "c.sqlite")

    def fill(db: Connection) -> None:
        db.execute(text("PRAGMA max_page_count = 1"))
        for number in range(2000):
            row = {"name": f"{number}-{'x' * 200}"}
            db.execute(text("INSERT INTO template_uses VALUES (:name, 0, 0)"), row)

    with pytest.raises(DiskFullError, match="free some disk space"):
        await catalog.write(fill)
    await catalog.close()


async def test_a_damaged_file_is_said_so_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    path.write_bytes(b"not a database at all" * 100)

    with pytest.raises(InfrastructureError, match="damaged"):
        await Catalog.open(path)
    assert path.read_bytes().startswith(b"not a database")


def described(path: Path) -> dict[str, list[object]]:
    """Every table of a database with its columns, indexes and foreign keys."""
    questions = ("table_info", "index_list", "foreign_key_list")
    with sqlite3.connect(path) as db:
        tables = [row[0] for row in db.execute("SELECT name FROM sqlite_master WHERE type='table'")]
        return {
            f"{question} {table}": sorted(
                row[1:] for row in db.execute(f"PRAGMA {question}({table})")
            )
            for table in tables
            for question in questions
        }


class TestSchema:
    def test_the_migrations_make_what_the_code_expects(self, tmp_path: Path) -> None:
        from alembic.autogenerate import compare_metadata
        from alembic.migration import MigrationContext
        from sqlalchemy import create_engine

        schema.migrate(tmp_path / "c.sqlite")
        with create_engine(f"sqlite:///{tmp_path / 'c.sqlite'}").connect() as connection:
            context = MigrationContext.configure(connection, opts={"compare_type": True})
            assert compare_metadata(context, metadata) == []

    def test_a_new_database_equals_a_migrated_one(self, tmp_path: Path) -> None:
        new, migrated = tmp_path / "new.sqlite", tmp_path / "migrated.sqlite"
        schema.bring_up_to_date(new)
        schema.migrate(migrated)
        assert described(new) == described(migrated)
        assert schema.current(new) == schema.current(migrated) == HEAD

    def test_a_crash_while_a_database_is_made_leaves_an_empty_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "c.sqlite"
        with monkeypatch.context() as crash:
            crash.setattr(schema, "_VERSION_TABLE", "CREATE nonsense")
            with pytest.raises(DBAPIError):
                schema.bring_up_to_date(path)
        assert described(path) == {}
        schema.bring_up_to_date(path)
        assert schema.current(path) == HEAD

    def test_the_newest_migration_is_the_one_the_code_names(self) -> None:
        from alembic.config import Config
        from alembic.script import ScriptDirectory

        config = Config()
        config.set_main_option("script_location", str(schema.MIGRATIONS))
        assert ScriptDirectory.from_config(config).get_current_head() == HEAD

    @pytest.mark.parametrize("new", [True, False])
    def test_alembic_is_imported_only_to_migrate(self, new: bool, tmp_path: Path) -> None:
        path = tmp_path / "c.sqlite"
        if not new:
            schema.bring_up_to_date(path)
        code = (
            "import sys; from pathlib import Path; from aenv.store import schema\n"
            "schema.bring_up_to_date(Path(sys.argv[1])); sys.exit('alembic' in sys.modules)"
        )
        assert run(code, path) == 0

    def test_a_newer_database_is_refused(self, tmp_path: Path) -> None:
        path = tmp_path / "c.sqlite"
        schema.bring_up_to_date(path)
        with sqlite3.connect(path) as connection:
            connection.execute("UPDATE alembic_version SET version_num = '9999'")

        with pytest.raises(InfrastructureError, match=r"9999.*newer aenv"):
            schema.bring_up_to_date(path)


async def test_a_failed_statement_does_not_tell_its_values(tmp_path: Path) -> None:
    catalog = await Catalog.open(tmp_path / "c.sqlite")
    statement = text("INSERT INTO template_uses VALUES (:secret, NULL, :secret)")
    with pytest.raises((DBAPIError, InfrastructureError)) as refused:
        await catalog.write(lambda db: db.execute(statement, {"secret": "s3cr3t"}))
    assert "s3cr3t" not in f"{refused.value} {refused.value.__cause__}"
    await catalog.close()
