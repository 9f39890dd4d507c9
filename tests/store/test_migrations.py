"""Databases of earlier versions come to the present with what they hold."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from tests.store.blobs.contents import stream, whole

from aenv.models.blobs import BlobRef
from aenv.models.folders import Folders
from aenv.models.sandboxes import SandboxState
from aenv.models.settings import Settings
from aenv.models.snapshots import ColdCopy, Kept
from aenv.models.volumes import VolumeMode
from aenv.store import builds, cold, schema, snapshots, volumes
from aenv.store import sandboxes as rows
from aenv.store.blobs.store import BlobStore
from aenv.store.catalog import Catalog

OLD = """
INSERT INTO sandboxes VALUES (
    'iaaaaaaaaaaaaaaaaaaa', 7, 'running', 'default', 'k1', 't1', 'base', 'gvisor', 2.0, 1024,
    10240, 'token', 'secret', NULL, '{"a": "b"}', '{}', 1, 2, 3, NULL, NULL, NULL, NULL);
INSERT INTO sandbox_labels VALUES ('iaaaaaaaaaaaaaaaaaaa', 'a', 'b');
INSERT INTO idempotency_keys VALUES ('k1', 'once', 'f', 'iaaaaaaaaaaaaaaaaaaa', 1);
INSERT INTO api_keys VALUES ('k1', 'h', 'm', 'local', 'local', 'default', 1, 1, NULL);
INSERT INTO template_uses VALUES ('base', 5, 1);
"""


def at(revision: str, path: Path) -> None:
    """A database as the version of that schema left it."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(schema.MIGRATIONS))
    config.attributes["path"] = path
    command.upgrade(config, revision)


async def test_sandboxes_of_schema_0001_run_on_and_are_killed_at_their_end(tmp_path: Path) -> None:
    path = tmp_path / "c.sqlite"
    at("0001", path)
    with sqlite3.connect(path) as old:
        old.executescript(OLD)

    catalog = await Catalog.open(path)
    record = await catalog.read(lambda db: rows.get(db, "iaaaaaaaaaaaaaaaaaaa"))
    uses = await catalog.read(rows.uses)
    await catalog.close()

    assert record is not None
    assert (record.state, record.version, record.labels) == (SandboxState.RUNNING, 7, {"a": "b"})
    assert (record.auto_pause, record.auto_pause_memory, record.auto_resume) == (False, True, False)
    assert (record.env_vars, record.secret_env, record.snapshot_id) == ({}, (), None)
    assert uses["base"].count == 5
    with sqlite3.connect(path) as new:
        assert new.execute("SELECT count(*) FROM sandbox_labels").fetchone() == (1,)
        assert new.execute("SELECT sandbox_id FROM idempotency_keys").fetchone() is not None


SNAPSHOT = """
INSERT INTO snapshots VALUES (
    's1', 'named', 'default', 't', 'kept', 'default', 'iaaaaaaaaaaaaaaaaaaa', NULL, 'b', 'base',
    'gvisor', 2.0, 1024, 10240, 1, 5, 6, 7, '{}', 1, 2);
"""


async def test_a_data_folder_of_schema_0002_gets_a_blob_store(tmp_path: Path) -> None:
    """Its snapshots stay, and blobs can be put."""
    folders = Folders(*(tmp_path / name for name in ("data", "cache", "config", "run")))
    folders.data.mkdir(mode=0o700)
    path = folders.data / "catalog.sqlite"
    at("0002", path)
    with sqlite3.connect(path) as old:
        old.executescript(SNAPSHOT)

    catalog = await Catalog.open(path)
    kept = await catalog.read(lambda db: snapshots.get(db, "s1"))
    store = await BlobStore.open(Settings(folders), catalog)
    done = await store.put(stream(b"content"), holder="snapshot:s1")
    read = await whole(store, done.ref.id)
    await catalog.close()

    assert kept is not None
    assert (kept.name, kept.own_bytes) == ("kept", 7)
    assert read == b"content"


async def test_a_data_folder_of_schema_0003_can_build_templates(tmp_path: Path) -> None:
    """Its snapshots stay what they were, and a template can be recorded."""
    path = tmp_path / "catalog.sqlite"
    at("0003", path)
    with sqlite3.connect(path) as old:
        old.executescript(SNAPSHOT)
    catalog = await Catalog.open(path)
    record = builds.TemplateRecord("t1", "default", "app", 1, 1)

    await catalog.write(lambda db: builds.add_template(db, record))

    assert await catalog.read(lambda db: builds.template_named(db, "default", "app")) == record
    assert "s1" in await catalog.read(snapshots.needed)
    await catalog.close()


async def test_a_data_folder_of_schema_0004_gets_volumes(tmp_path: Path) -> None:
    """What it holds has none, and can hold one."""
    path = tmp_path / "c.sqlite"
    at("0001", path)
    with sqlite3.connect(path) as old:
        old.executescript(OLD)
    at("0004", path)
    with sqlite3.connect(path) as old:
        old.executescript(SNAPSHOT)

    catalog = await Catalog.open(path)
    sandbox = await catalog.read(lambda db: rows.get(db, "iaaaaaaaaaaaaaaaaaaa"))
    kept = await catalog.read(lambda db: snapshots.get(db, "s1"))
    data = volumes.VolumeRecord("v1", "default", "data", 10, VolumeMode.EXCLUSIVE, "token", 1)
    claim = volumes.Claim("v1", "iaaaaaaaaaaaaaaaaaaa", read_only=False)
    await catalog.write(lambda db: (volumes.add(db, data), volumes.claim(db, claim)))
    held = await catalog.read(lambda db: volumes.holders(db, ["v1"]))
    found = await catalog.read(lambda db: volumes.named(db, "default", "data"))
    await catalog.close()

    assert sandbox is not None
    assert kept is not None
    assert (sandbox.volumes, kept.volumes) == ((), ())
    assert (held, found) == ([claim], data)


async def test_a_data_folder_of_schema_0005_gets_its_snapshots_stored(tmp_path: Path) -> None:
    """They are where they were taken, wait for the store, and can be recorded as whole in it."""
    path = tmp_path / "c.sqlite"
    at("0002", path)
    with sqlite3.connect(path) as old:
        old.executescript(SNAPSHOT)
    at("0005", path)
    copy = ColdCopy("s1", {"id": "s1"}, {"host_secret": "h"}, {"k": BlobRef("b", "d", 3)}, {})

    catalog = await Catalog.open(path)
    waiting = await catalog.read(lambda db: cold.waiting(db, before=2))
    with sqlite3.connect(path) as other:
        other.execute("UPDATE snapshots SET volumes = '[{}]'")
    bound = await catalog.read(lambda db: (cold.bound(db, "s1"), cold.waiting(db, before=2)))
    with sqlite3.connect(path) as other:
        other.execute("UPDATE snapshots SET volumes = '[]'")
    late = await catalog.read(lambda db: cold.waiting(db, before=0))
    begun = await catalog.write(lambda db: cold.begin(db, "s1", now=3))
    kept = Kept(copy, bytes_new=1, bytes_shared=2, bytes_zero=0, bytes_sent=1)
    await catalog.write(lambda db: cold.finish(db, kept, now=4))
    found = await catalog.read(lambda db: cold.get(db, "s1"))
    await catalog.write(lambda db: snapshots.remove(db, ["s1"]))
    gone = await catalog.read(lambda db: cold.get(db, "s1"))
    await catalog.close()

    assert bound == (True, [])
    assert (waiting, late, begun, gone) == (["s1"], [], True, None)
    assert found is not None
    assert (found.state, found.copy, found.bytes) == (cold.ColdState.STORED, copy, 3)
    assert "host_secret" not in repr(found)
