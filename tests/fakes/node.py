"""A node in memory: it honours the port, and can be slow, full, broken or forgetful on demand."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace

from aenv.models.errors import ConflictError, Culprit, NotFoundError
from aenv.models.sandboxes import LogEntry, NetworkPolicy, SandboxExit, SandboxMetrics
from aenv.models.templates import TemplateInfo, TemplateProgress, TemplateStatus
from aenv.node.engine import Address, Capabilities, Finding, Isolation
from aenv.node.port import Adoption, AdoptRequest, Node, NodeInfo, RunningSandbox, SandboxSpec

BASE = TemplateInfo("base", "sha256:base", 1000, 1_700_000_000.0)
FAKE = Capabilities("fake", Isolation.NONE, needs_root=False)


@dataclass
class Knobs:
    """``create_gate``/``destroy_gate``: calls wait until set. ``*_errors``: raised by the next
    calls, one each.
    """

    create_gate: asyncio.Event | None = None
    destroy_gate: asyncio.Event | None = None
    create_errors: list[Exception] = field(default_factory=list)
    destroy_errors: list[Exception] = field(default_factory=list)
    network_errors: list[Exception] = field(default_factory=list)
    exits_errors: list[Exception] = field(default_factory=list)
    info_error: Exception | None = None
    start_error: Exception | None = None
    build: TemplateProgress | None = None


class FakeNode(Node):
    """Machines are names in ``running``. ``calls`` is what was asked, in order."""

    def __init__(self, running: dict[str, SandboxSpec] | None = None) -> None:
        self.running: dict[str, SandboxSpec] = {} if running is None else running
        self.knobs = Knobs()
        self.infos: dict[str, TemplateInfo] = {"base": BASE}
        self.entries: dict[str, list[LogEntry]] = {}
        self.samples: dict[str, list[SandboxMetrics]] = {}
        self.ended: list[SandboxExit] = []
        self.calls: list[tuple[str, str]] = []
        self.closed = False
        self._exits: asyncio.Queue[SandboxExit] = asyncio.Queue()

    def exit(
        self, sandbox_id: str, *, code: int = 0, culprit: Culprit = Culprit.POLICY
    ) -> SandboxExit:
        """The machine ends by itself."""
        self.running.pop(sandbox_id)
        exit_ = SandboxExit(sandbox_id, code, culprit, f"init ended with {code}")
        self._exits.put_nowait(exit_)
        return exit_

    async def start(
        self, adopt: tuple[AdoptRequest, ...], *, snapshots: frozenset[str] = frozenset()
    ) -> Adoption:
        self._called("start", "")
        if self.knobs.start_error:
            raise self.knobs.start_error
        wanted = {request.sandbox_id for request in adopt}
        reaped = [name for name in self.running if name not in wanted]
        for name in reaped:
            del self.running[name]
        return Adoption(
            running=tuple(self._described(self.running[n]) for n in wanted if n in self.running),
            ended=tuple(exit_ for exit_ in self.ended if exit_.sandbox_id in wanted),
            reaped=tuple(reaped),
        )

    async def close(self) -> None:
        self._called("close", "")
        self.closed = True

    async def clear(self) -> None:
        self._called("clear", "")

    async def info(self) -> NodeInfo:
        self._called("info", "")
        if self.knobs.info_error:
            raise self.knobs.info_error
        return NodeInfo("n1", "0", (FAKE,), 2, 1.0, 100, 60, 1000, 400, "6.0", "x86_64")

    async def probe(self) -> list[Finding]:
        return []

    async def create(self, spec: SandboxSpec) -> RunningSandbox:
        self._called("create", spec.sandbox_id)
        if self.knobs.create_gate:
            await self.knobs.create_gate.wait()
        if self.knobs.create_errors:
            raise self.knobs.create_errors.pop(0)
        if spec.sandbox_id in self.running:
            raise ConflictError("exists")
        self.running[spec.sandbox_id] = spec
        self.samples[spec.sandbox_id] = [SandboxMetrics(1.5, 2, 3.0, 4, 5, 6, 7, 8)]
        return self._described(spec)

    async def destroy(self, sandbox_id: str) -> None:
        self._called("destroy", sandbox_id)
        if self.knobs.destroy_gate:
            await self.knobs.destroy_gate.wait()
        if self.knobs.destroy_errors:
            raise self.knobs.destroy_errors.pop(0)
        self.running.pop(sandbox_id, None)

    async def forget(self, sandbox_id: str) -> None:
        self._called("forget", sandbox_id)
        self.entries.pop(sandbox_id, None)

    async def set_network(self, sandbox_id: str, policy: NetworkPolicy) -> None:
        self._called("set_network", sandbox_id)
        if self.knobs.network_errors:
            raise self.knobs.network_errors.pop(0)
        self.running[sandbox_id] = replace(self.running[sandbox_id], network=policy)

    async def metrics(
        self, sandbox_id: str, *, start: float | None = None, end: float | None = None
    ) -> list[SandboxMetrics]:
        self._called("metrics", sandbox_id)
        return [
            sample
            for sample in self.samples.get(sandbox_id, [])
            if (start is None or sample.timestamp >= start)
            and (end is None or sample.timestamp <= end)
        ]

    async def logs(
        self,
        sandbox_id: str,
        *,
        after: int = 0,
        limit: int = 1000,
        descending: bool = False,
        level: str | None = None,
        search: str | None = None,
        start: float | None = None,
    ) -> list[LogEntry]:
        self._called("logs", sandbox_id)
        found = [
            entry
            for entry in self.entries.get(sandbox_id, [])
            if (entry.seq < after if descending and after else entry.seq > after or descending)
            and (level is None or entry.level == level)
            and (search is None or search in entry.message)
            and (start is None or entry.timestamp >= start)
        ]
        return sorted(found, key=lambda entry: entry.seq, reverse=descending)[:limit]

    async def exits(self) -> AsyncIterator[SandboxExit]:  # type: ignore[override]
        while True:
            if self.knobs.exits_errors:
                raise self.knobs.exits_errors.pop(0)
            yield await self._exits.get()

    async def templates(self) -> list[TemplateInfo]:
        self._called("templates", "")
        return list(self.infos.values())

    async def template_progress(self, name: str) -> TemplateProgress:
        self._called("template_progress", name)
        if name in self.infos:
            return TemplateProgress(name, TemplateStatus.READY, 1.0)
        if self.knobs.build and self.knobs.build.name == name:
            return self.knobs.build
        if name in ("base", "host"):
            return TemplateProgress(name, TemplateStatus.ABSENT)
        raise NotFoundError(f"there is no template {name!r}")

    async def ensure_template(self, name: str, *, wait: float = 0) -> TemplateProgress:
        self._called("ensure_template", name)
        return await self.template_progress(name)

    async def delete_template(self, name: str) -> None:
        self._called("delete_template", name)
        if any(spec.template == name for spec in self.running.values()):
            raise ConflictError(f"template {name} is in use")
        if self.infos.pop(name, None) is None:
            raise NotFoundError(f"there is no template {name!r}")

    def count(self, call: str) -> int:
        return sum(1 for name, _ in self.calls if name == call)

    def _called(self, call: str, about: str) -> None:
        self.calls.append((call, about))

    def _described(self, spec: SandboxSpec) -> RunningSandbox:
        return RunningSandbox(
            spec.sandbox_id, Address("127.0.0.1", 1), "127.0.0.1", self.infos["base"], "fake"
        )
