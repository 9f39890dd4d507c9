from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.node.nodes import Bench

from aenv.node.local import LocalNode


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture
async def node(bench: Bench) -> AsyncIterator[LocalNode]:
    node = bench.node()
    await node.start(())
    yield node
    await node.close()
    for machine in bench.engine.machines.values():
        await machine.agent.stop()
