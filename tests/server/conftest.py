from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.apis import Api


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    api = await Api(tmp_path).open()
    yield api
    await api.close()
