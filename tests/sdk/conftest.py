"""A control plane with real guest agents, and sandboxes on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.fakes.agents import agent_binary
from tests.fakes.control_plane import KEY, ControlPlane

from aenv import AsyncSandbox


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test sees, or leaves, anything of this machine's servers."""
    for name in ("data", "cache", "config", "run"):
        monkeypatch.setenv(f"AENV_{name.upper()}_DIR", str(tmp_path / "aenv" / name))
    for name in ("AENV_SYSTEM_URL", "AENV_API_KEY", "AENV_PROFILE", "AENV_ENGINE", "AENV_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
async def plane(tmp_path: Path) -> AsyncIterator[ControlPlane]:
    found = ControlPlane(agent_binary(), tmp_path / "guests")
    await found.start()
    yield found
    await found.close()


@pytest.fixture
async def sandbox(plane: ControlPlane) -> AsyncIterator[AsyncSandbox]:
    async with await AsyncSandbox.create("base", url=plane.url, api_key=KEY) as found:
        yield found
