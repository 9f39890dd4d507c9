"""The blob store in a bucket of a real S3 server, and what that server can do to us."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from tests.fakes.s3 import BUCKET, KEY, SECRET, Wire, s3_server, status
from tests.store.blobs.conftest import OpenStore
from tests.store.blobs.contents import PAGE, pages, stream, whole

from aenv.models.errors import (
    BlobDamagedError,
    BlobStoreDeniedError,
    BlobStoreUnreachableError,
    Culprit,
    HostSetupError,
)
from aenv.models.settings import BlobSettings
from aenv.store.blobs import objects, places
from aenv.store.blobs.chunks import HOLE
from aenv.store.blobs.places import credentials


@pytest.fixture
async def wire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Wire]:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    async with s3_server(tmp_path) as found:
        yield found


@pytest.fixture
def bucket(wire: Wire) -> BlobSettings:
    return BlobSettings(
        bucket=BUCKET,
        prefix="team/one",
        endpoint=wire.endpoint,
        region="us-east-1",
        access_key_id=KEY,
        secret_access_key=SECRET,
    )


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Patience of a second instead of a minute."""
    monkeypatch.setattr(places, "CLIENT", {"connect_timeout": "1s", "timeout": "1s"})
    quick = {"max_retries": 2, "retry_timeout": timedelta(seconds=5)}
    monkeypatch.setattr(places, "RETRY", {**places.RETRY, **quick})
    monkeypatch.setattr(objects, "PATIENCE", 20.0)


def stored(wire: Wire) -> list[Path]:
    folder = wire.root / BUCKET / "team" / "one"
    return [path for kind in ("chunks", "blobs") for path in (folder / kind).glob("*/*")]


async def test_a_blob_goes_there_and_back(
    open_store: OpenStore, bucket: BlobSettings, wire: Wire, tmp_path: Path
) -> None:
    """Put by one node, changed and put by another, read by both, collected."""
    one, two = await open_store("one", bucket), await open_store("one", bucket)
    content = pages(2500) + bytes(HOLE) + b"end"
    first = await one.put(stream(content), holder="parent")
    child = content[: 900 * PAGE] + pages(2, 1) + content[900 * PAGE :]
    second = await two.put(stream(child), holder="child")
    assert second.bytes_new < len(child) // 3

    await two.fetch(first.ref, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    reader = await one.reader(second.ref.id)
    assert await reader.read(899 * PAGE, 4 * PAGE) == child[899 * PAGE : 903 * PAGE]
    assert (await one.verify()).damages == ()
    used = await two.usage()
    assert used.bytes_stored >= sum(path.stat().st_size for path in stored(wire))
    assert used.location.startswith("s3://blobs/team/one of http://127.0.0.1")

    await one.release("parent")
    assert (await two.gc()).blobs == 1
    assert await whole(one, second.ref.id) == child
    await two.release("child")
    await one.gc()
    assert stored(wire) == []


async def test_more_objects_than_one_answer_lists(
    open_store: OpenStore, bucket: BlobSettings, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store("one", bucket)
    content = b"".join(pages(1, n) + bytes(HOLE) for n in range(1100))
    done = await store.put(stream(content, 1 << 20), holder="one")
    assert sum(part.count for part in (await store.usage()).parts) == 1102
    assert await whole(store, done.ref.id) == content
    await store.release("one")
    assert (await store.gc()).objects_deleted == 1101
    assert stored(wire) == []


async def test_another_servers_prefix_is_refused(
    open_store: OpenStore, bucket: BlobSettings
) -> None:
    await open_store("one", bucket)
    with pytest.raises(HostSetupError, match="belongs to another server"):
        await open_store("two", bucket)
    await open_store("two", replace(bucket, prefix="team/two"))


async def test_wrong_keys(open_store: OpenStore, bucket: BlobSettings) -> None:
    with pytest.raises(BlobStoreDeniedError, match="check its keys") as refused:
        await open_store("one", replace(bucket, secret_access_key="wrong"))
    assert refused.value.culprit is Culprit.INFRASTRUCTURE
    assert SECRET not in str(refused.value)


async def test_no_such_bucket(open_store: OpenStore, bucket: BlobSettings, wire: Wire) -> None:
    wire.answers = [status("404 Not Found", "NoSuchBucket")] * 9
    with pytest.raises(HostSetupError, match=r"blobs.*store\.bucket"):
        await open_store("one", bucket)


@pytest.mark.usefixtures("hasty")
@pytest.mark.parametrize("fault", ["down", "stalled", "503", "cut"])
async def test_a_store_that_does_not_serve_is_told_and_comes_back(
    open_store: OpenStore, bucket: BlobSettings, wire: Wire, fault: str
) -> None:
    store = await open_store("one", bucket)
    kept = await store.put(stream(pages(100)), holder="kept")
    if fault in ("down", "stalled"):
        setattr(wire, fault, True)
    else:
        wire.answers = [status("503 Slow Down", "SlowDown") if fault == "503" else b""] * 500
    wire.cut()

    for work in (
        store.put(stream(pages(300, 1)), holder="lost"),
        store.reader(kept.ref.id),
        store.verify(),
        store.usage(),
    ):
        with pytest.raises(BlobStoreUnreachableError, match="endpoint") as told:
            await work
        assert (told.value.status, told.value.culprit) == (503, Culprit.INFRASTRUCTURE)

    wire.down, wire.stalled, wire.answers = False, False, []
    wire.cut()
    assert await whole(store, kept.ref.id) == pages(100)
    done = await store.put(stream(pages(300, 1)), holder="found")
    assert await whole(store, done.ref.id) == pages(300, 1)


async def test_short_troubles_are_not_even_noticed(
    open_store: OpenStore, bucket: BlobSettings, wire: Wire
) -> None:
    store = await open_store("one", bucket)
    wire.answers = [status("503 Slow Down", "SlowDown"), status("500 Internal Server Error"), b""]
    wire.cut()
    done = await store.put(stream(pages(100)), holder="one")
    wire.answers = [status("502 Bad Gateway"), b""]
    wire.cut()
    assert await whole(store, done.ref.id) == pages(100)


@pytest.mark.usefixtures("hasty")
async def test_a_gc_that_is_cut_off_goes_on_later(
    open_store: OpenStore, bucket: BlobSettings, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_store("one", bucket)
    await store.put(stream(pages(600)), holder="one")
    await store.release("one")
    delete = store.objects.delete

    async def cut_off(keys: Sequence[str]) -> None:
        wire.down = True
        wire.cut()
        await delete(keys)

    with monkeypatch.context() as patch:
        patch.setattr(store.objects, "delete", cut_off)
        with pytest.raises(BlobStoreUnreachableError):
            await store.gc()
    wire.down = False
    again = await store.put(stream(pages(600)), holder="two")
    assert again.bytes_new == 600 * PAGE
    assert (await store.gc()).objects_deleted > 0
    assert await whole(store, again.ref.id) == pages(600)


async def test_damage_within_the_bucket(
    open_store: OpenStore, bucket: BlobSettings, wire: Wire
) -> None:
    store = await open_store("one", bucket)
    done = await store.put(stream(pages(70)), holder="one")
    [chunk] = [path for path in stored(wire) if "chunks" in path.parts]
    os.truncate(chunk, 1000)
    with pytest.raises(BlobDamagedError, match=chunk.name):
        await whole(store, done.ref.id)
    assert [one.holders for one in (await store.verify()).damages] == [("one",)]
    await store.put(stream(pages(70)), holder="two")
    assert await whole(store, done.ref.id) == pages(70)


async def test_reads_go_on_side_by_side(
    open_store: OpenStore, bucket: BlobSettings, wire: Wire
) -> None:
    store = await open_store("one", bucket)
    done = await store.put(stream(pages(3000)), holder="one")
    wire.cut()
    before = wire.connections
    reader = await store.reader(done.ref.id)
    found = await asyncio.gather(*(reader.read(n * 100 * PAGE, 100 * PAGE) for n in range(30)))
    assert b"".join(found) == pages(3000)
    assert wire.connections - before <= 9


class TestCredentials:
    def test_a_profile(self, tmp_path: Path) -> None:
        (tmp_path / ".aws").mkdir()
        text = "[p]\naws_access_key_id = A\naws_secret_access_key = B%C\naws_session_token = D\n"
        (tmp_path / ".aws" / "credentials").write_text(text)
        env = {"HOME": str(tmp_path)}
        wanted = {"access_key_id": "A", "secret_access_key": "B%C", "session_token": "D"}
        assert credentials(BlobSettings(bucket="b", profile="p"), env) == wanted
        assert credentials(BlobSettings(bucket="b"), {**env, "AWS_PROFILE": "p"}) == wanted
        with pytest.raises(HostSetupError, match=r"'q'.*no aws_access_key_id"):
            credentials(BlobSettings(bucket="b", profile="q"), env)

    def test_variables_beat_the_profile_of_the_environment(self, tmp_path: Path) -> None:
        env = {"HOME": str(tmp_path), "AWS_PROFILE": "p", "AWS_ACCESS_KEY_ID": "A"}
        assert credentials(BlobSettings(bucket="b"), env) == {}

    def test_settings_beat_all(self) -> None:
        chosen = BlobSettings(bucket="b", profile="p", access_key_id="A", secret_access_key="B")
        wanted = {"access_key_id": "A", "secret_access_key": "B"}
        assert credentials(chosen, {}) == wanted
