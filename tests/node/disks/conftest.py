from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.node.disks.pool import DiskPool, PoolKind
from aenv.node.host import Host, open_host


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


def make_settings(folder: Path, *, pool_mb: int = 512, reserve_mb: int = 1024) -> Settings:
    folders = Folders(folder / "data", folder / "cache", folder / "config", folder / "run")
    return Settings(folders, pool_mb=pool_mb, disk_reserve_mb=reserve_mb)


@pytest.fixture
def host(settings: Settings) -> Iterator[Host]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    opened = open_host(settings)
    yield opened
    opened.close()


@pytest.fixture
def lower(tmp_path: Path) -> Path:
    layer = tmp_path / "layer"
    (layer / "etc").mkdir(parents=True)
    (layer / "etc/motd").write_text("welcome\n")
    return layer


@pytest.fixture
async def pool(settings: Settings, host: Host) -> AsyncIterator[DiskPool]:
    """A started pool with quotas; afterwards nothing of it may be mounted or attached."""
    pool = DiskPool(settings, host)
    await pool.start()
    assert pool.kind is PoolKind.LOOP
    yield pool
    await pool.reap(frozenset())
    await pool.close()
    assert mounts_under(host, settings.folders.data.parent) == []
    deadline = asyncio.get_running_loop().time() + 5  # the kernel detaches it in the background
    while host.loops.find(settings.folders.data / "pool.btrfs") is not None:
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.02)


def mounts_under(host: Host, folder: Path) -> list[Path]:
    return [mount.target for mount in host.mounts.table() if mount.target.is_relative_to(folder)]


def fill(folder: Path, mebibytes: int, name: str = "big") -> OSError | None:
    """Write that much; the error that stopped it, if one did."""
    try:
        with open(folder / name, "wb", buffering=0) as file:
            for _ in range(mebibytes):
                file.write(os.urandom(1 << 20))
            os.fsync(file.fileno())
    except OSError as error:
        return error
    return None


Identify = Callable[[str], str]


@pytest.fixture
def identify() -> Identify:
    return lambda letter: "i" + letter * 19
