"""What befalls a sandbox, told in its own log, where its owner looks."""

from __future__ import annotations

import asyncio

import structlog

from aenv.models.errors import AenvError
from aenv.node.port import Node

log = structlog.get_logger()
TIMEOUT = 10.0


class Events:
    def __init__(self, node: Node) -> None:
        self._node = node

    async def note(self, sandbox_id: str, message: str, *, level: str = "info") -> None:
        """Never fails: an event that cannot be noted is in the server's log all the same."""
        log.info("event", sandbox_id=sandbox_id, message=message, level_of_event=level)
        try:
            async with asyncio.timeout(TIMEOUT):
                await self._node.note(sandbox_id, message, level=level)
        except (AenvError, OSError, TimeoutError) as error:
            log.error("event not noted", sandbox_id=sandbox_id, error=repr(error))
