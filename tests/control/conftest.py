from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.control.houses import House


@pytest.fixture
async def house(tmp_path: Path) -> AsyncIterator[House]:
    house = await House(tmp_path).open()
    yield house
    house.node.knobs.create_gate = house.node.knobs.destroy_gate = None
    await house.system.close()
