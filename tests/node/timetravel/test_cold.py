"""Snapshots that go to the blob store and come back from it, on real gVisor."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.node.timetravel.travel import Guest, Host, new_snapshot_id

from aenv.models.errors import (
    BlobStoreUnreachableError,
    DiskFullError,
    EngineError,
    NotFoundError,
    SnapshotDamagedError,
)
from aenv.models.settings import BlobSettings, Settings
from aenv.models.snapshots import ColdCopy, Kept, RestoreMode
from aenv.node import faults
from aenv.node.cold import copies
from aenv.store.blobs.store import BlobStore
from aenv.store.catalog import Catalog

pytestmark = [pytest.mark.root, pytest.mark.gvisor]

WRITE = """
set -e
cd /root; rm -rf tree; mkdir -p tree/a/b; cd tree
head -c 3000000 /dev/urandom > big; echo one > a/b/c; ln a/b/c hard; ln -s a/b/c soft
mkfifo pipe; truncate -s 64M sparse; printf end >> sparse; chmod 4751 a/b/c; chown 7:8 a
touch -d '2001-02-03 04:05:06.123456789' a/b/c
mv /usr/share/doc /root/tree/doc 2>/dev/null || true
rm -f /etc/motd /etc/issue; mkdir -p /etc/fresh; rm -rf /etc/fresh; mkdir /etc/fresh
touch /etc/fresh/x
"""
LOOK = """
cd /root/tree && find . -xdev ! -type d -printf '%p %y %m %U %G %n %l %T@ %s\\n' | sort | sha256sum
cd /root/tree && cat big sparse a/b/c hard soft | sha256sum
ls -a /etc | sha256sum; ls /etc/fresh; stat -c '%a %u %g' / /root/tree /root/tree/a
"""


@pytest.fixture
async def blobs(folder: Path, host: Host) -> AsyncIterator[BlobStore]:
    """A folder as the blob store."""
    shared = folder / "shared"
    shared.mkdir()
    settings = Settings(host.settings.folders, store=BlobSettings(folder=str(shared)))
    catalog = await Catalog.open(folder / "catalog.sqlite")
    yield await BlobStore.open(settings, catalog)
    await catalog.close()


async def paused(host: Host, guest: Guest, *, memory: bool = True) -> str:
    """Warm, whatever the host has room for."""
    name = new_snapshot_id()
    await host.node.pause(guest.spec.sandbox_id, name, memory=memory)
    await host.node.demote(guest.spec.sandbox_id)
    return name


async def cold(host: Host, guest: Guest, blobs: BlobStore) -> Kept:
    kept = await host.node.store_snapshot(await paused(host, guest), blobs)
    await host.node.evict_snapshot(kept.copy.snapshot_id)
    return kept


async def nothing_is_left(host: Host, snapshot: str) -> None:
    data = host.settings.folders.data
    assert not await host.node.has_snapshot(snapshot)
    assert snapshot not in await host.disk_images()
    assert not (data / "snapshots" / snapshot).exists()
    assert layers(host) == []


def layers(host: Host) -> list[str]:
    root = host.settings.folders.data / "sealed" / "layers"
    return sorted(path.name for path in root.glob("*") if len(path.name) == 32)


async def test_processes_and_files_survive_a_cold_pause(host: Host, blobs: BlobStore) -> None:
    guest = await host.create()
    await guest.start_counter()
    await guest.sh(WRITE)
    await guest.agent.spawn(
        "exec 7>/root/open; while :; do echo x >&7; sleep 0.05; done", user="root"
    )
    await guest.sh("until [ -s /root/open ]; do sleep 0.01; done")
    before, seen = await guest.sh(LOOK), await guest.count()

    kept = await cold(host, guest, blobs)
    await nothing_is_left(host, kept.copy.snapshot_id)
    await host.node.fetch_snapshot(kept.copy, blobs)
    back = await host.resume(guest, kept.copy.snapshot_id)

    assert back.running.restored is RestoreMode.WARM
    assert back.running.note is None
    assert await back.sh(LOOK) == before
    now = await back.count()
    assert (now[0], now[1] >= seen[1]) == (seen[0], True)
    size = int(await back.sh("stat -c %s /root/open"))
    await back.sh(f"until [ $(stat -c %s /root/open) -gt {size} ]; do sleep 0.01; done")
    await back.sh("echo more >> /root/tree/a/b/c; rm /root/tree/soft; echo y > /etc/fresh/x")
    assert await back.sh("cat /root/tree/a/b/c") == "one\nmore"


async def test_the_next_cold_pause_sends_only_what_changed(host: Host, blobs: BlobStore) -> None:
    guest = await host.create()
    await guest.sh("head -c 8000000 /dev/urandom > /root/big; sync")
    first = await cold(host, guest, blobs)
    await host.node.fetch_snapshot(first.copy, blobs)
    back = await host.resume(guest, first.copy.snapshot_id)
    await host.node.delete_snapshot(first.copy.snapshot_id)
    await back.sh("echo small > /root/small")

    second = await cold(host, back, blobs)

    (top, below), (only,) = second.copy.manifest["layers"], first.copy.manifest["layers"]
    assert below == only
    assert second.copy.layers[below] == first.copy.layers[only]
    assert second.copy.layers[top].length < 1_000_000 < first.copy.layers[only].length
    assert second.bytes_new < first.bytes_new / 2 < second.bytes_shared + second.bytes_new
    await host.node.fetch_snapshot(second.copy, blobs)
    again = await host.resume(guest, second.copy.snapshot_id)
    assert await again.sh("cat /root/small; stat -c %s /root/big") == "small\n8000000"


async def test_a_disk_of_many_layers_stays_here(
    host: Host, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than come back as what no mount can hold."""
    guest = await host.create()
    first = await cold(host, guest, blobs)
    await host.node.fetch_snapshot(first.copy, blobs)
    name = await paused(host, await host.resume(guest, first.copy.snapshot_id))
    monkeypatch.setattr(copies, "MOST_LAYERS", 1)

    with pytest.raises(EngineError, match="stays on this host"):
        await host.node.store_snapshot(name, blobs)

    assert (await host.resume(guest, name)).running.restored is RestoreMode.WARM


async def test_another_node_resumes_it(
    host: Host, blobs: BlobStore, folder: Path, agent_binary: Path
) -> None:
    guest = await host.create()
    await guest.start_counter()
    kept = await host.node.store_snapshot(await paused(host, guest), blobs)
    copy = ColdCopy.from_json(kept.copy.to_json())
    other = await Host.of(folder / "other", agent_binary)
    try:
        await other.node.fetch_snapshot(copy, blobs)
        back = await other.resume(guest, copy.snapshot_id)
        assert back.running.restored is RestoreMode.WARM
        assert (await back.count())[0] > 0
        await other.node.destroy(guest.spec.sandbox_id)
    finally:
        await other.node.close()
        await other.begin()
        await other.node.close()


async def test_forks_start_from_a_snapshot_that_came_back(host: Host, blobs: BlobStore) -> None:
    guest = await host.create()
    await guest.sh("echo kept > /root/kept")
    name = new_snapshot_id()
    await host.node.snapshot(guest.spec.sandbox_id, name)
    kept = await host.node.store_snapshot(name, blobs)
    await host.node.evict_snapshot(name)
    await host.node.fetch_snapshot(kept.copy, blobs)

    children = [await host.create(snapshot=name) for _ in range(2)]

    for child in children:
        assert child.running.restored is RestoreMode.WARM
        assert await child.sh("cat /root/kept; echo own >> /root/kept; cat /root/kept") == (
            "kept\nkept\nown"
        )
    assert await guest.sh("cat /root/kept") == "kept"


async def test_without_its_memory_it_boots(host: Host, blobs: BlobStore) -> None:
    guest = await host.create()
    await guest.sh("echo kept > /root/kept")
    name = await paused(host, guest, memory=False)
    kept = await host.node.store_snapshot(name, blobs)
    await host.node.evict_snapshot(name)
    await host.node.fetch_snapshot(kept.copy, blobs)
    back = await host.resume(guest, name)
    assert await back.sh("cat /root/kept") == "kept"


async def test_layers_outlive_restarts_and_go_with_the_last_who_needs_them(
    host: Host, blobs: BlobStore
) -> None:
    guest = await host.create()
    await guest.sh("echo kept > /root/kept")
    kept = await cold(host, guest, blobs)
    name = kept.copy.snapshot_id
    await host.node.fetch_snapshot(kept.copy, blobs)
    await host.restart(snapshots=[name])
    assert len(layers(host)) == 1

    back = await host.resume(guest, name)
    await host.node.delete_snapshot(name)
    assert len(layers(host)) == 1
    await host.restart(back.spec)
    assert await back.sh("cat /root/kept") == "kept"
    again = await paused(host, back)
    await host.restart(snapshots=[again])
    assert await (await host.resume(guest, again)).sh("cat /root/kept") == "kept"
    await host.node.delete_snapshot(again)
    await host.node.destroy(guest.spec.sandbox_id)
    await host.restart()
    assert layers(host) == []


async def test_a_damaged_layer_is_told_and_damaged_memory_means_a_boot(
    host: Host, blobs: BlobStore, folder: Path
) -> None:
    guest = await host.create()
    await guest.sh("head -c 3000000 /dev/urandom > /root/kept")
    kept = await cold(host, guest, blobs)
    (layer,) = kept.copy.layers.values()
    largest = max(kept.copy.memory.values(), key=lambda ref: ref.length)

    whole = await damage(blobs, folder, largest.id, but=layer.id)
    await host.node.fetch_snapshot(kept.copy, blobs)
    back = await host.resume(guest, kept.copy.snapshot_id)
    assert back.running.restored is RestoreMode.DISK
    assert "booted from its disk" in str(back.running.note)
    assert await back.sh("stat -c %s /root/kept") == "3000000"
    await host.node.destroy(guest.spec.sandbox_id)
    await host.node.evict_snapshot(kept.copy.snapshot_id)
    mend(whole)

    whole = await damage(blobs, folder, layer.id, but=largest.id)
    with pytest.raises(SnapshotDamagedError, match="cannot be read from the blob store"):
        await host.node.fetch_snapshot(kept.copy, blobs)
    await nothing_is_left(host, kept.copy.snapshot_id)
    mend(whole)
    await host.node.fetch_snapshot(kept.copy, blobs)
    assert (await host.resume(guest, kept.copy.snapshot_id)).running.note is None


async def damage(blobs: BlobStore, folder: Path, blob: str, *, but: str) -> dict[Path, bytes]:
    """Change a chunk that only the first of both has; what it was."""
    spared = {part.name for part in (await blobs.reader(but)).parts}
    names = {part.name for part in (await blobs.reader(blob)).parts} - spared - {None}
    (path,) = (folder / "shared").rglob(f"{min(map(str, names))}*")
    before = {path: path.read_bytes()}
    path.write_bytes(bytes(len(before[path])))
    return before


def mend(whole: dict[Path, bytes]) -> None:
    for path, content in whole.items():
        path.write_bytes(content)


async def test_a_store_that_is_away_changes_nothing(
    host: Host, blobs: BlobStore, folder: Path
) -> None:
    guest = await host.create()
    await guest.start_counter()
    name = await paused(host, guest)
    shared, away = folder / "shared", folder / "away"
    shared.rename(away)
    with pytest.raises(BlobStoreUnreachableError):
        await host.node.store_snapshot(name, blobs)
    away.rename(shared)
    kept = await host.node.store_snapshot(name, blobs)
    await host.node.evict_snapshot(name)

    shared.rename(away)
    with pytest.raises(BlobStoreUnreachableError):
        await host.node.fetch_snapshot(kept.copy, blobs)
    await nothing_is_left(host, name)
    away.rename(shared)
    await host.node.fetch_snapshot(kept.copy, blobs)
    assert (await (await host.resume(guest, name)).count())[0] > 0


async def test_no_room_is_told_before_anything_is_fetched(
    host: Host, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = await cold(host, await host.create(), blobs)
    with monkeypatch.context() as patched:
        patched.setattr(copies, "SPARE", 1 << 60)
        with pytest.raises(DiskFullError, match="takes"):
            await host.node.fetch_snapshot(kept.copy, blobs)
    await nothing_is_left(host, kept.copy.snapshot_id)
    await host.node.fetch_snapshot(kept.copy, blobs)


@pytest.mark.parametrize("step", ["store.sealed", "store.layers", "store.memory"])
async def test_an_interrupted_put_goes_on(host: Host, blobs: BlobStore, step: str) -> None:
    guest = await host.create()
    name = await paused(host, guest)

    async def fail(_: str) -> None:
        raise EngineError("it ends here")

    with faults.armed(step, fail), pytest.raises(EngineError, match="it ends here"):
        await host.node.store_snapshot(name, blobs)
    await host.restart(snapshots=[name])
    kept = await host.node.store_snapshot(name, blobs)
    if step == "store.memory":
        assert kept.bytes_new == 0
    await host.node.evict_snapshot(name)
    await nothing_is_left(host, name)


async def test_a_snapshot_that_is_nowhere_is_not_found(host: Host, blobs: BlobStore) -> None:
    with pytest.raises(NotFoundError):
        await host.node.store_snapshot(new_snapshot_id(), blobs)
