"""A node without an engine that mounts volumes refuses them, and leaves nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.node.nodes import Bench, make_spec

from aenv.models.errors import CapabilityError
from aenv.models.volumes import VolumeMount
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


async def test_an_engine_that_mounts_none_refuses_them(bench: Bench, node: LocalNode) -> None:
    spec = replace(make_spec(), volumes=(VolumeMount("v1", "data", "/data"),))
    with pytest.raises(CapabilityError, match="volumeMounts"):
        await node.create(spec)
    assert bench.engine.alive == set()


async def test_none_can_be_made_or_opened(node: LocalNode) -> None:
    with pytest.raises(CapabilityError, match="gvisor"):
        await node.make_volume("v1", 10)
    with pytest.raises(CapabilityError):
        await node.volume_content("v1")
    assert await node.reap_volumes(frozenset()) == []
