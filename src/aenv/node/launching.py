"""The sandboxes that are being made: each by a task, which whoever kills the sandbox ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from aenv.models.errors import ConflictError, EngineError
from aenv.node.residents import DESTROY_DEADLINE, Resident


@dataclass(frozen=True, slots=True)
class _Launch:
    task: asyncio.Task[Resident]
    template: str


class Launching:
    """``destroy``: ends what a launch has become when its caller goes away."""

    def __init__(self, destroy: Callable[[str], Awaitable[None]]) -> None:
        self._destroy = destroy
        self._table: dict[str, _Launch] = {}

    def __contains__(self, sandbox_id: str) -> bool:
        return sandbox_id in self._table

    def __len__(self) -> int:
        return len(self._table)

    def templates(self) -> list[str]:
        """The template of each."""
        return [launch.template for launch in self._table.values()]

    async def run(
        self, sandbox_id: str, template: str, launch: Coroutine[Any, Any, Resident]
    ) -> Resident:
        """Raises ConflictError when it is killed meanwhile; nothing is left then."""
        task = asyncio.create_task(launch, name=f"launch-{sandbox_id}")
        self._table[sandbox_id] = _Launch(task, template)
        task.add_done_callback(lambda _: self._table.pop(sandbox_id, None))
        try:
            resident = await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and not _cancelling():
                raise _killed(sandbox_id) from None
            await asyncio.shield(asyncio.ensure_future(self._destroy(sandbox_id)))
            raise
        if resident.departure is not None:
            raise _killed(sandbox_id)
        return resident

    async def cancel(self, sandbox_id: str) -> None:
        """End a launch, if there is one; what it has made is gone then."""
        launch = self._table.get(sandbox_id)
        if launch is None:
            return
        launch.task.cancel()
        await asyncio.wait({launch.task}, timeout=DESTROY_DEADLINE)
        if not launch.task.done():
            raise EngineError(f"sandbox {sandbox_id} is being started and does not let go")

    async def close(self) -> None:
        tasks = [launch.task for launch in self._table.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _killed(sandbox_id: str) -> ConflictError:
    return ConflictError(f"sandbox {sandbox_id} was killed while it was starting")
