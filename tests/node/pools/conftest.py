from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.fakes.images import BASE
from tests.node.nodes import Bench
from tests.node.pools.ponds import Pond

from aenv.node.pools import pools


@pytest.fixture
async def pond(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pond]:
    monkeypatch.setattr(pools, "QUIET", 0.0)
    bench = Bench(tmp_path)
    bench.images.ready["busy"] = replace(BASE, name="busy", digest="def", start_cmd="serve")
    pond = Pond(bench)
    await pond.start()
    yield pond
    await pond.close()
    for machine in bench.engine.machines.values():
        await machine.agent.stop()
