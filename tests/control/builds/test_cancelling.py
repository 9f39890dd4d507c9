"""Builds that are called off while a transaction of theirs is under way: it commits even so."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection, text
from tests.control.builds.yards import Yard, run

from aenv.control.builds.service import BuildStatus

WRITES = 16


class Interrupter:
    """Calls the build off when its ``at``-th transaction has been committed, or never begins, and
    it does not know yet which.
    """

    def __init__(self, yard: Yard, at: int, *, committed: bool = True) -> None:
        self._committed = committed
        self._builds = yard.system.building.builds
        self._catalog = yard.system.catalog
        self._write = self._catalog.write
        self._left = at

    async def write(self, work: Callable[[Connection], Any]) -> Any:
        task = asyncio.current_task()
        for build_id, running in list(self._builds._tasks.items()):
            if running is task:
                self._left -= 1
                if self._left == 0:
                    if self._committed:
                        await self._write(work)
                    self._builds._call_off(build_id, "the build was cancelled")
                    await asyncio.sleep(0)
        return await self._write(work)


@pytest.mark.parametrize("committed", [True, False])
@pytest.mark.parametrize("at", range(1, WRITES))
async def test_it_ends_and_rows_and_images_agree(
    yard: Yard, at: int, committed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupter = Interrupter(yard, at, committed=committed)
    monkeypatch.setattr(yard.system.catalog, "write", interrupter.write)

    build = await yard.end(await yard.begin(run("a"), run("b")))
    await yard.settled()

    if build.status is BuildStatus.ERROR:
        assert build.message == "the build was cancelled"
    rows = await yard.system.catalog.read(
        lambda db: set(db.scalars(text("SELECT id FROM snapshots")))
    )
    assert rows == set(yard.node.images)
    assert yard.node.running == {}
    monkeypatch.undo()
    assert (await yard.build(run("a"), run("b"))).status is BuildStatus.READY


async def test_the_last_of_them_comes_after_the_end(yard: Yard) -> None:
    """So that the test above has met them all."""
    interrupter = Interrupter(yard, WRITES - 1)
    yard.system.catalog.write = interrupter.write  # type: ignore[method-assign]

    assert (await yard.build(run("a"), run("b"))).status is BuildStatus.READY
    assert interrupter._left > 0
