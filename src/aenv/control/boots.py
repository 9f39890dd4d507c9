"""Which sandboxes are being made right now: others join, cancel or wait for a creation."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from aenv.store.records import SandboxRecord


@dataclass(slots=True)
class Boots:
    """``making``: the whole creation, by sandbox id. ``booting``: its call to the node, which may
    be cancelled.
    """

    making: dict[str, asyncio.Task[SandboxRecord]] = field(default_factory=dict)
    booting: dict[str, asyncio.Task[Any]] = field(default_factory=dict)

    async def cancel(self, sandbox_id: str, timeout: float = 30) -> None:
        """Stop a boot and wait until its creation has let go; nothing to do when there is none."""
        making = self.making.get(sandbox_id)
        if making is None or making is asyncio.current_task():
            return
        if (booting := self.booting.get(sandbox_id)) is not None:
            booting.cancel()
        await asyncio.wait({making}, timeout=timeout)
