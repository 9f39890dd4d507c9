"""Hosts as ``/nodes`` and ``/metrics`` show them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass

from aenv.control.deadlines import deadline
from aenv.control.telemetry import Telemetry
from aenv.models.errors import AenvError, NotFoundError
from aenv.models.memory import MemoryReport
from aenv.models.sandboxes import SandboxState
from aenv.node.port import Node
from aenv.node.port import NodeInfo as NodeInfo
from aenv.store import sandboxes as rows
from aenv.store.catalog import Catalog
from aenv.store.records import Usage

TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class HostReport:
    """``usage``: what the sandboxes in each state hold; ``memory``: as the host measures it."""

    info: NodeInfo
    memory: MemoryReport
    usage: Mapping[SandboxState, Usage]
    creates_ok: int
    creates_failed: int

    def count(self, state: SandboxState) -> int:
        return self.usage.get(state, Usage()).sandboxes

    @property
    def promised_cpu(self) -> float:
        return sum(used.cpu for used in self._held())

    @property
    def promised_memory(self) -> int:
        return sum(used.memory_mb for used in self._held()) * 2**20

    def _held(self) -> Iterator[Usage]:
        """Paused sandboxes are promised nothing."""
        return (used for state, used in self.usage.items() if state is not SandboxState.PAUSED)


class Hosts:
    def __init__(self, catalog: Catalog, node: Node, telemetry: Telemetry) -> None:
        self._catalog = catalog
        self._node = node
        self._telemetry = telemetry

    async def all(self) -> list[HostReport]:
        async with deadline(TIMEOUT, "asking the node how it is"):
            info, memory = await asyncio.gather(self._node.info(), self._node.memory())
        return [
            HostReport(
                info,
                memory,
                await self._usage(),
                self._telemetry.creates_ok,
                self._telemetry.creates_failed,
            )
        ]

    async def get(self, node_id: str) -> HostReport:
        for report in await self.all():
            if report.info.node_id == node_id:
                return report
        raise NotFoundError(f"there is no node {node_id[:64]!r}")

    async def prometheus(self) -> bytes:
        """The text of ``/metrics``; without the host's figures when the node does not answer."""
        info: NodeInfo | None = None
        memory: MemoryReport | None = None
        with suppress(AenvError):
            async with deadline(TIMEOUT, "asking the node how it is"):
                info, memory = await asyncio.gather(self._node.info(), self._node.memory())
        return self._telemetry.render(await self._usage(), info, memory)

    async def _usage(self) -> Mapping[SandboxState, Usage]:
        return await self._catalog.read(rows.usage_by_state)
