"""Firewall changes in order, with what waits meanwhile taken along in one transaction."""

from __future__ import annotations

import asyncio

from aenv.models.errors import AenvError
from aenv.node.host import Firewall


class Transactions:
    """Each script takes effect as a whole or not at all; a refused one hurts no other."""

    def __init__(self, firewall: Firewall) -> None:
        self._firewall = firewall
        self._waiting: list[tuple[str, asyncio.Future[None]]] = []
        self._worker: asyncio.Task[None] | None = None

    async def load(self, script: str) -> None:
        """Return once it is in force. A caller that is cancelled does not take it back."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((script, done))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work(), name="aenv-firewall")
        await done

    async def _work(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            try:
                await self._run_batch(batch)
            finally:
                for _, done in batch:  # the loop is ending: nobody may wait for ever
                    done.cancel()

    async def _run_batch(self, batch: list[tuple[str, asyncio.Future[None]]]) -> None:
        try:
            await self._run([script for script, _ in batch])
        except (AenvError, OSError) as error:
            if len(batch) == 1:
                _fail(batch[0][1], error)
            else:
                await self._one_by_one(batch)
        else:
            for _, done in batch:
                _finish(done)

    async def _one_by_one(self, batch: list[tuple[str, asyncio.Future[None]]]) -> None:
        for script, done in batch:
            try:
                await self._run([script])
            except (AenvError, OSError) as error:
                _fail(done, error)
            else:
                _finish(done)

    async def _run(self, scripts: list[str]) -> None:
        await asyncio.to_thread(self._firewall.load, "\n".join(scripts))


def _finish(done: asyncio.Future[None]) -> None:
    if not done.done():
        done.set_result(None)


def _fail(done: asyncio.Future[None], error: Exception) -> None:
    if not done.done():
        done.set_exception(error)
