"""Listening for machines that end by themselves."""

from __future__ import annotations

import asyncio

import structlog

from aenv.control.background import Background
from aenv.control.endings import Endings
from aenv.node.port import Node

log = structlog.get_logger()


class Exits:
    """``pause``: seconds before listening again after the node's stream broke."""

    def __init__(
        self, node: Node, endings: Endings, background: Background, *, pause: float = 1.0
    ) -> None:
        self._node = node
        self._endings = endings
        self._background = background
        self._pause = pause

    async def run(self) -> None:
        while True:
            try:
                async for exit_ in self._node.exits():
                    log.info(
                        "sandbox exited",
                        sandbox_id=exit_.sandbox_id,
                        code=exit_.code,
                        culprit=exit_.culprit.value,
                    )
                    self._background.start(
                        self._endings.exited(exit_), f"exited {exit_.sandbox_id}"
                    )
            except Exception as error:  # noqa: BLE001 - the loop must go on
                log.error("listening for exits failed, goes on", error=repr(error))
            await asyncio.sleep(self._pause)
