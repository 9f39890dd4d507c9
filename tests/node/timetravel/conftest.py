from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.conformance.conftest import agent_binary
from tests.conformance.subjects import Subject
from tests.fakes.waiting import until
from tests.node.timetravel.travel import Host

__all__ = ["agent_binary"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, unlike pytest's own: socket names have a limit."""
    if not (sys.platform == "linux" and os.geteuid() == 0):
        pytest.skip("gVisor needs root on Linux")
    with tempfile.TemporaryDirectory(prefix="aenv-t-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


@pytest.fixture
async def host(folder: Path, agent_binary: Path) -> AsyncIterator[Host]:
    """A host without sandboxes; afterwards nothing of it may be left in the kernel."""
    host = await Host.of(folder, agent_binary)
    yield host
    await host.node.close()
    await host.begin()
    await host.node.close()
    traces = Subject.of("gvisor", folder, agent_binary).instance_traces
    await until(lambda: traces() == [], timeout=15)
