from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from tests.conformance.subjects import Subject, build_agent
from tests.fakes.waiting import until

from aenv.node.engine import Machine

_SOURCES = Path(__file__).parents[2] / "agent"


@pytest.fixture(scope="session")
def agent_binary() -> Iterator[Path]:
    """The real agent, built from this checkout."""
    if shutil.which("go") is None:
        carried = Path(__file__).parents[2] / "src/aenv/_bin/agent"
        assert carried.exists(), "the suite needs go, or the agent that the wheel's build puts here"
        yield carried
        return
    with tempfile.TemporaryDirectory() as folder:
        yield build_agent(Path(folder, "agent"), _SOURCES)


@pytest.fixture(
    params=[pytest.param("gvisor", marks=[pytest.mark.gvisor, pytest.mark.root]), "process"]
)
def engine_name(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name == "gvisor" and not (sys.platform == "linux" and os.geteuid() == 0):
        pytest.skip("gVisor needs root on Linux")
    return name


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short, unlike pytest's own: socket names have a limit."""
    with tempfile.TemporaryDirectory(prefix="aenv-c-", ignore_cleanup_errors=True) as name:
        yield Path(name).resolve()


@pytest.fixture
async def subject(engine_name: str, folder: Path, agent_binary: Path) -> AsyncIterator[Subject]:
    subject = Subject.of(engine_name, folder, agent_binary)
    await subject.engine.start()
    yield subject
    await subject.engine.reap(frozenset())
    await subject.engine.close()
    await until(lambda: subject.instance_traces() == [], timeout=15)


@pytest.fixture
async def machine(subject: Subject) -> Machine:
    return await subject.engine.boot(subject.spec())
