"""The process in which ``base`` is built: it ends with its starter and leaves nothing running."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.models.templates import TemplateStatus
from aenv.node.images import ImageStore
from aenv.node.images.base import BaseRecipe
from aenv.node.images.builtin import recipe
from aenv.node.images.worker import command, environment

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or not shutil.which("mmdebstrap"),
        reason="needs root on Linux and mmdebstrap",
    ),
]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path / "data", tmp_path / "cache", tmp_path / "config", tmp_path / "run")


@pytest.fixture
async def store(folders: Folders) -> AsyncIterator[ImageStore]:
    store = ImageStore(Settings(folders=folders), None, names=("base",), recipe_of=recipe)
    yield store
    await store.close()


@pytest.fixture
async def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Event]:
    """Set once a build has asked its mirror, which takes connections and never answers."""
    asked = asyncio.Event()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        while await reader.read(4096):
            pass
        writer.close()

    server = await asyncio.start_server(listen, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sources(tmp_path, monkeypatch, f"http://127.0.0.1:{port}/debian")
    yield asked
    server.close()


def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uri: str) -> None:
    path = tmp_path / "debian.list"
    path.write_text(f"deb [trusted=yes] {uri} bookworm main\n")
    monkeypatch.setenv("AENV_DEBIAN_SOURCES", str(path))
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.delenv(name, raising=False)


def processes(folders: Folders) -> dict[int, str]:
    """Process ids and names of a build in this test's cache folder, known by their environment."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if str(folders.cache).encode() in (path / "environ").read_bytes():
                found[int(path.name)] = (path / "comm").read_text().strip()
        except OSError:
            continue
    return found


async def until(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()


async def until_gone(folders: Folders) -> None:
    async with asyncio.timeout(20):
        while processes(folders):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def test_a_mirror_that_is_not_there_fails_the_build_with_its_words(
    store: ImageStore, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources(tmp_path, monkeypatch, f"file://{tmp_path}/nowhere")

    failed = await store.ensure("base", wait=60)

    assert failed.status is TemplateStatus.ERROR
    assert "nowhere" in str(failed.error)
    assert [path for path in (folders.cache / "images").iterdir() if path.is_dir()] == []


async def test_a_failed_build_keeps_the_packages_it_has_downloaded(
    store: ImageStore, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    downloaded = folders.cache / "apt/bookworm/some_1_all.deb"
    downloaded.parent.mkdir(parents=True)
    downloaded.write_text("a package")
    sources(tmp_path, monkeypatch, f"file://{tmp_path}/nowhere")

    await store.ensure("base", wait=60)

    assert downloaded.exists()


async def test_closing_the_store_ends_the_build_and_all_it_started(
    store: ImageStore, folders: Folders, asked: asyncio.Event
) -> None:
    assert (await store.ensure("base")).status is TemplateStatus.BUILDING
    await until(asked)

    await store.close()

    await until_gone(folders)
    assert (await store.progress("base")).status is TemplateStatus.ABSENT


async def test_a_killed_build_is_told_and_the_next_clears_up(
    store: ImageStore,
    folders: Folders,
    asked: asyncio.Event,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waiting = asyncio.create_task(store.ensure("base", wait=60))
    await until(asked)

    [outermost] = [pid for pid, name in processes(folders).items() if name == "unshare"]
    os.kill(outermost, signal.SIGKILL)

    killed = await waiting
    assert killed.status is TemplateStatus.ERROR
    assert "build again" in str(killed.error)
    await until_gone(folders)
    sources(tmp_path, monkeypatch, f"file://{tmp_path}/nowhere")
    await store.ensure("base", wait=60)
    assert [path for path in (folders.cache / "images").iterdir() if path.is_dir()] == []


async def test_it_ends_with_a_starter_that_was_killed(
    folders: Folders, asked: asyncio.Event
) -> None:
    """The starter's death closes the worker's standard input; here we close it."""
    worker = await asyncio.create_subprocess_exec(
        *command(BaseRecipe(folders.cache)), stdin=asyncio.subprocess.PIPE, env=environment(folders)
    )
    await until(asked)

    assert worker.stdin is not None
    worker.stdin.close()

    async with asyncio.timeout(20):
        await worker.wait()
    await until_gone(folders)
