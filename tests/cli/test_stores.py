"""``aenv store`` against a real server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.cli.conftest import ARGV, Cli
from tests.fakes.s3 import BUCKET, KEY, SECRET, s3_server
from tests.store.blobs.conftest import settings_in
from tests.store.blobs.contents import pages, stream

from aenv.models.settings import BlobSettings
from aenv.store.blobs.store import BlobStore
from aenv.store.catalog import Catalog

API_KEY = "e2b_admin"


@asynccontextmanager
async def running(
    folder: Path, folders: dict[str, str], store: BlobSettings | None = None
) -> AsyncIterator[tuple[Cli, BlobStore]]:
    """A server, the command line for it, and another user of its blob store."""
    chosen = {key: text for key, text in _given(store) if text is not None}
    options = json.dumps({"api_key": API_KEY, **chosen})
    server = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.fakes.server", str(folder), options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=folders,
    )
    assert server.stdout is not None
    try:
        url = json.loads(await server.stdout.readline())["url"]
        env = {**folders, "AENV_SYSTEM_URL": url, "AENV_API_KEY": API_KEY}
        catalog = await Catalog.open(folder / "data" / "catalog.sqlite")
        yield Cli(env, folder), await BlobStore.open(settings_in(folder, store), catalog)
        await catalog.close()
    finally:
        server.terminate()
        await server.communicate()


def _given(store: BlobSettings | None) -> list[tuple[str, Any]]:
    names = ("bucket", "endpoint", "region", "access_key_id", "secret_access_key")
    return [(f"store.{name}", getattr(store, name)) for name in names] if store else []


async def test_usage_verify_and_gc(tmp_path: Path, folders: dict[str, str]) -> None:
    async with running(tmp_path, folders) as (cli, store):
        done = await store.put(stream(pages(300)), holder="snapshot:one")

        used = await asyncio.to_thread(cli.json, "store", "usage")
        assert used["store"]["bytes_logical"] == done.ref.length
        assert {"name", "bytes", "count", "place"} == used["store"]["parts"][0].keys()
        text = await asyncio.to_thread(cli.text, "store", "usage")
        assert "1 blobs, 1.2 MiB if each were stored by itself" in text
        assert "chunks that blobs need" in text

        assert (await asyncio.to_thread(cli.json, "store", "verify"))["damages"] == []
        assert store.objects.folder is not None
        victim = sorted(store.objects.folder.glob("chunks/*/*"))[0]
        victim.write_bytes(b"")
        told = await asyncio.to_thread(cli.fail, "store", "verify")
        assert victim.name in told
        assert "needed by snapshot:one" in told
        found = await asyncio.to_thread(cli.run, "store", "verify", "--json", check=False)
        assert found.returncode == 1
        assert json.loads(found.stdout)["damages"][0]["blobs"] == [done.ref.id]

        await store.release("snapshot:one")
        assert (await asyncio.to_thread(cli.json, "store", "gc"))["blobs"] == 1
        assert "freed 0 B: 0 blobs" in await asyncio.to_thread(cli.text, "store", "gc")


async def test_a_store_that_is_down_and_ctrl_c(tmp_path: Path, folders: dict[str, str]) -> None:
    async with s3_server(tmp_path) as wire:
        bucket = BlobSettings(
            bucket=BUCKET,
            endpoint=wire.endpoint,
            region="us-east-1",
            access_key_id=KEY,
            secret_access_key=SECRET,
        )
        async with running(tmp_path, folders, bucket) as (cli, store):
            await store.put(stream(pages(70)), holder="one")
            wire.down = True
            wire.cut()
            failed = await asyncio.to_thread(cli.fail, "store", "usage", "--json")
            error = json.loads(failed)["error"]
            assert (error["code"], error["culprit"]) == ("blob_store_unreachable", "infrastructure")
            assert "store.endpoint" in error["message"]

            wire.down, wire.stalled = False, True
            assert await asyncio.to_thread(_interrupted, cli, "store", "verify") == 130
            wire.stalled = False
            wire.cut()
            assert (await asyncio.to_thread(cli.json, "store", "verify"))["chunks"] == 1


def _interrupted(cli: Cli, *args: str) -> int:
    """The exit code after Ctrl-C while it tells how far it is."""
    with subprocess.Popen([*ARGV, *args], env=cli.env, cwd=cli.cwd, stderr=subprocess.PIPE) as done:
        assert done.stderr is not None
        assert os.read(done.stderr.fileno(), 1000)
        done.send_signal(signal.SIGINT)
        told = done.stderr.read()
        assert b"Traceback" not in told
    return done.returncode
