"""These tests run on uvloop, as the server does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio
import uvloop
from tests.server.proxy.stage import Stage

from aenv.server.proxy import ProxySettings


def pytest_asyncio_loop_factories(config: pytest.Config, item: pytest.Item) -> dict[str, Any]:
    return {"uvloop": uvloop.new_event_loop}


@pytest_asyncio.fixture
async def stage(request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    """A started stage; ``parametrize("stage", [settings], indirect=True)`` sets limits."""
    stage = Stage(settings=getattr(request, "param", None) or ProxySettings())
    async with stage.stack:
        await stage.start()
        yield stage
