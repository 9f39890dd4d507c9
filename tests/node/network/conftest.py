from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from aenv.models.folders import Folders
from aenv.models.settings import EgressSettings, Settings
from aenv.node.host import Host, open_host
from aenv.node.network.slots import SlotPool

from . import lab as labs


@pytest.fixture
def lab() -> Iterator[labs.Lab]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    with labs.entered() as entered:
        yield entered


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return make_settings(tmp_path)


def make_settings(
    folder: Path, name: str = "data", *, slots: int = 1, egress: EgressSettings | None = None
) -> Settings:
    folders = Folders(folder / name, folder / "cache", folder / "config", folder / "run")
    return Settings(folders, network_slots=slots, egress=egress or EgressSettings())


@pytest.fixture
def host(lab: labs.Lab, settings: Settings) -> Iterator[Host]:
    opened = open_host(settings)
    yield opened
    opened.close()


@pytest.fixture
async def internet(lab: labs.Lab) -> AsyncIterator[labs.Lab]:
    """Servers on port 80 beyond the router, and on the host itself."""
    await lab.serve(80, netns=lab.internet)
    await lab.serve(80)
    yield lab
    await lab.close()


@pytest.fixture
async def pool(internet: labs.Lab, settings: Settings, host: Host) -> AsyncIterator[SlotPool]:
    """A started pool; afterwards nothing of it may be left on the host."""
    pool = SlotPool(settings, host)
    await pool.start()
    yield pool
    await pool.reap(frozenset())
    await pool.close()
    instance = settings.folders.instance
    assert [name for name in labs.leftovers() if instance in name] == []
    assert "aenv_" not in rules()
    assert (
        sorted(p.name for p in (settings.folders.run / "slots").iterdir() if p.name.isdigit()) == []
    )


def rules(what: str = "ruleset") -> str:
    """What the kernel has now: all of it, or for example ``table ip filter``."""
    return subprocess.run(
        ["nft", "list", *what.split()], check=True, capture_output=True, text=True, timeout=10
    ).stdout


async def eventually(condition: Callable[[], bool], *, within: float = 5) -> None:
    """Poll until it holds; AssertionError after the deadline."""
    deadline = asyncio.get_running_loop().time() + within
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, "did not happen in time"
        await asyncio.sleep(0.01)
