"""A node in memory: it honours the port, and can be slow, full, broken or forgetful on demand."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from tests.fakes.workbench import FakeWorkbench, Script

from aenv.models.errors import (
    ConflictError,
    Culprit,
    DiskFullError,
    NotFoundError,
    SnapshotDamagedError,
)
from aenv.models.memory import MemoryReport
from aenv.models.pools import PoolReport
from aenv.models.registries import RegistryLogin
from aenv.models.sandboxes import (
    LogEntry,
    NetworkPolicy,
    Resources,
    SandboxExit,
    SandboxMetrics,
)
from aenv.models.snapshots import RestoreMode, SnapshotImage
from aenv.models.templates import TemplateInfo, TemplateProgress, TemplateStatus
from aenv.models.volumes import VolumeUse
from aenv.node.engine import Address, Capabilities, Finding, Isolation
from aenv.node.port import Adoption, AdoptRequest, Node, NodeInfo, RunningSandbox, SandboxSpec
from aenv.node.volumes.content import VolumeContent
from aenv.node.volumes.files import LocalContent
from aenv.node.volumes.store import VolumeFolder
from aenv.node.workbench import Surroundings, Workbench

BASE = TemplateInfo("base", "sha256:base", 1000, 1_700_000_000.0)
FAKE = Capabilities("fake", Isolation.NONE, needs_root=False, memory_snapshot=True, live_fork=True)
PLAIN = Capabilities("plain", Isolation.NONE, needs_root=False)


@dataclass
class Knobs:
    """``*_gate``: calls wait until set, machines being copied frozen meanwhile. ``*_errors``:
    raised by the next calls, one each.

    ``keep_hot``: paused machines stay in memory. ``restorable``: memory images can be restored.
    ``mute``: sandboxes whose agents do not answer. ``waiting``: ids in the warm pool.
    ``damaged``: snapshots that do not pass verification.
    """

    create_gate: asyncio.Event | None = None
    destroy_gate: asyncio.Event | None = None
    snapshot_gate: asyncio.Event | None = None
    publish_gate: asyncio.Event | None = None
    pause_gate: asyncio.Event | None = None
    resume_gate: asyncio.Event | None = None
    snapshot_errors: list[Exception] = field(default_factory=list)
    pause_errors: list[Exception] = field(default_factory=list)
    resume_errors: list[Exception] = field(default_factory=list)
    delete_errors: list[Exception] = field(default_factory=list)
    keep_hot: bool = True
    restorable: bool = True
    mute: set[str] = field(default_factory=set)
    damaged: set[str] = field(default_factory=set)
    create_errors: list[Exception] = field(default_factory=list)
    volume_errors: list[Exception] = field(default_factory=list)
    destroy_errors: list[Exception] = field(default_factory=list)
    network_errors: list[Exception] = field(default_factory=list)
    exits_errors: list[Exception] = field(default_factory=list)
    info_error: Exception | None = None
    waiting: list[str] = field(default_factory=list)
    claim_error: Exception | None = None
    memory: MemoryReport = field(default_factory=MemoryReport)
    pools: PoolReport = field(default_factory=PoolReport)
    start_error: Exception | None = None
    build: TemplateProgress | None = None


@dataclass
class FakeHost:
    """What outlives a server: machines by sandbox, running or frozen after a pause, and images."""

    running: dict[str, SandboxSpec] = field(default_factory=dict)
    hot: dict[str, SandboxSpec] = field(default_factory=dict)
    images: dict[str, SnapshotImage] = field(default_factory=dict)
    volumes: dict[str, tempfile.TemporaryDirectory[str]] = field(default_factory=dict)


class FakeNode(Node):
    """Machines are names in ``running``, paused ones in ``hot``. ``frozen``: while being copied.
    ``calls`` is what was asked, in order.
    """

    def __init__(self, host: FakeHost | None = None) -> None:
        self.host = host or FakeHost()
        self.running = self.host.running
        self.hot = self.host.hot
        self.images = self.host.images
        self.frozen: set[str] = set()
        self.notes: list[tuple[str, str, str]] = []
        self.knobs = Knobs()
        self.infos: dict[str, TemplateInfo] = {"base": BASE}
        self.entries: dict[str, list[LogEntry]] = {}
        self.samples: dict[str, list[SandboxMetrics]] = {}
        self.ended: list[SandboxExit] = []
        self.calls: list[tuple[str, str]] = []
        self.closed = False
        self.script = Script()
        self.around = Surroundings()
        self.logins: list[RegistryLogin | None] = []
        self.opened: list[tuple[str, ...]] = []
        self._exits: asyncio.Queue[SandboxExit] = asyncio.Queue()

    def exit(
        self, sandbox_id: str, *, code: int = 0, culprit: Culprit = Culprit.POLICY
    ) -> SandboxExit:
        """The machine ends by itself."""
        if self.running.pop(sandbox_id, None) is None:
            del self.hot[sandbox_id]
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
        paused = {request.sandbox_id for request in adopt if request.paused}
        reaped = [name for name in (*self.running, *self.hot) if name not in wanted]
        for name in reaped:
            self.running.pop(name, None)
            self.hot.pop(name, None)
        for name in [name for name in self.hot if name not in paused]:
            self.running[name] = self.hot.pop(name)
        for name in [name for name in self.images if name not in snapshots]:
            del self.images[name]
        return Adoption(
            running=tuple(self._described(self.running[n]) for n in wanted if n in self.running),
            ended=tuple(exit_ for exit_ in self.ended if exit_.sandbox_id in wanted),
            reaped=tuple(reaped),
            paused=tuple(self.hot),
        )

    async def close(self) -> None:
        self._called("close", "")
        self.closed = True

    async def clear(self) -> bool:
        self._called("clear", "")
        return not self.running

    async def make_volume(self, volume_id: str, size_mb: int) -> None:
        self._called("make_volume", volume_id)
        if self.knobs.volume_errors:
            raise self.knobs.volume_errors.pop(0)
        made = tempfile.TemporaryDirectory(prefix="aenv-fake-volume-")
        for folder in _within(made):
            os.mkdir(folder)
        self.host.volumes[volume_id] = made

    async def drop_volume(self, volume_id: str) -> None:
        self._called("drop_volume", volume_id)
        if (gone := self.host.volumes.pop(volume_id, None)) is not None:
            gone.cleanup()

    async def reap_volumes(self, keep: frozenset[str]) -> list[str]:
        if self.knobs.volume_errors:
            raise self.knobs.volume_errors.pop(0)
        doomed = [name for name in self.host.volumes if name not in keep]
        for name in doomed:
            await self.drop_volume(name)
        return doomed

    async def volume_use(self, volume_id: str) -> VolumeUse:
        return VolumeUse(0, 0)

    async def volume_content(self, volume_id: str) -> VolumeContent:
        return LocalContent(VolumeFolder(*_within(self.host.volumes[volume_id])))

    async def info(self) -> NodeInfo:
        self._called("info", "")
        if self.knobs.info_error:
            raise self.knobs.info_error
        info = NodeInfo("n1", "0", (FAKE, PLAIN), 2, 1.0, 100, 60, 1000, 400, "6.0", "x86_64")
        return replace(info, pools=self.knobs.pools)

    async def memory(self) -> MemoryReport:
        return self.knobs.memory

    async def probe(self) -> list[Finding]:
        return []

    async def claim(
        self,
        template: str,
        resources: Resources,
        *,
        snapshot: str | None = None,
        engine: str | None = None,
    ) -> str | None:
        self._called("claim", snapshot or template)
        if self.knobs.claim_error:
            raise self.knobs.claim_error
        return self.knobs.waiting.pop() if self.knobs.waiting else None

    async def unclaim(self, sandbox_id: str) -> None:
        self._called("unclaim", sandbox_id)

    async def create(self, spec: SandboxSpec) -> RunningSandbox:
        self._called("create", spec.sandbox_id)
        if self.knobs.create_gate:
            await self.knobs.create_gate.wait()
        if self.knobs.create_errors:
            raise self.knobs.create_errors.pop(0)
        if spec.sandbox_id in self.running:
            raise ConflictError("exists")
        mode = self._restore_mode(spec) if spec.snapshot else None
        self.running[spec.sandbox_id] = spec
        self.samples[spec.sandbox_id] = [SandboxMetrics(1.5, 2, 3.0, 4, 5, 6, 7, 8)]
        return self._described(spec, mode)

    async def destroy(self, sandbox_id: str) -> None:
        self._called("destroy", sandbox_id)
        if self.knobs.destroy_gate:
            await self.knobs.destroy_gate.wait()
        if self.knobs.destroy_errors:
            raise self.knobs.destroy_errors.pop(0)
        self.running.pop(sandbox_id, None)
        self.hot.pop(sandbox_id, None)

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

    async def note(self, sandbox_id: str, message: str, *, level: str = "info") -> None:
        self.notes.append((sandbox_id, level, message))
        entries = self.entries.setdefault(sandbox_id, [])
        seq = entries[-1].seq + 1 if entries else 1
        entries.append(LogEntry(seq, time.time(), "system", message, level))

    async def healthy(self, sandbox_id: str) -> bool:
        return sandbox_id not in self.knobs.mute

    async def workbench(self, sandbox_id: str) -> Workbench:
        assert sandbox_id in self.running
        self.opened.append(self.running[sandbox_id].network.private_out)
        return FakeWorkbench(self.script)

    async def surroundings(self) -> Surroundings:
        return self.around

    async def settle(self, sandbox_id: str) -> None:
        self._called("settle", sandbox_id)

    async def snapshot(
        self,
        sandbox_id: str,
        snapshot_id: str,
        *,
        memory: bool = True,
        parent: str | None = None,
        thawed: Callable[[], Awaitable[None]] | None = None,
    ) -> SnapshotImage:
        self._called("snapshot", sandbox_id)
        self.frozen.add(sandbox_id)
        try:
            if self.knobs.snapshot_gate:
                await self.knobs.snapshot_gate.wait()
            if self.knobs.snapshot_errors:
                raise self.knobs.snapshot_errors.pop(0)
        finally:
            self.frozen.discard(sandbox_id)
        if thawed is not None:
            await thawed()
        if self.knobs.publish_gate:
            await self.knobs.publish_gate.wait()
        return self._keep(sandbox_id, snapshot_id, memory, parent)

    async def pause(
        self, sandbox_id: str, snapshot_id: str, *, memory: bool = True, parent: str | None = None
    ) -> SnapshotImage:
        self._called("pause", sandbox_id)
        self.frozen.add(sandbox_id)
        try:
            if self.knobs.pause_gate:
                await self.knobs.pause_gate.wait()
            if self.knobs.pause_errors:
                error = self.knobs.pause_errors.pop(0)
                if isinstance(error, DiskFullError):
                    self.hot[sandbox_id] = self.running.pop(sandbox_id)
                raise error
            image = self._keep(sandbox_id, snapshot_id, memory, parent)
        finally:
            self.frozen.discard(sandbox_id)
        spec = self.running.pop(sandbox_id)
        if memory and self.knobs.keep_hot:
            self.hot[sandbox_id] = spec
        return image

    async def keep(
        self, sandbox_id: str, snapshot_id: str, *, parent: str | None = None
    ) -> SnapshotImage:
        self._called("keep", sandbox_id)
        if sandbox_id not in self.hot:
            raise ConflictError("not paused in memory alone")
        if self.knobs.pause_gate:
            await self.knobs.pause_gate.wait()
        if self.knobs.pause_errors:
            raise self.knobs.pause_errors.pop(0)
        return self._keep(sandbox_id, snapshot_id, True, parent)

    async def resume(self, spec: SandboxSpec) -> RunningSandbox:
        self._called("resume", spec.sandbox_id)
        if self.knobs.resume_gate:
            await self.knobs.resume_gate.wait()
        if self.knobs.resume_errors:
            raise self.knobs.resume_errors.pop(0)
        if spec.sandbox_id in self.running:
            return self._described(self.running[spec.sandbox_id], RestoreMode.HOT)
        hot = self.hot.pop(spec.sandbox_id, None)
        if hot is not None and not spec.reboot:
            self.running[spec.sandbox_id] = spec
            return self._described(spec, RestoreMode.HOT)
        mode = self._restore_mode(spec)
        self.running[spec.sandbox_id] = spec
        return self._described(spec, mode)

    async def demote(self, sandbox_id: str) -> bool:
        self._called("demote", sandbox_id)
        return self.hot.pop(sandbox_id, None) is not None

    async def delete_snapshot(self, snapshot_id: str) -> None:
        self._called("delete_snapshot", snapshot_id)
        if self.knobs.delete_errors:
            raise self.knobs.delete_errors.pop(0)
        self.images.pop(snapshot_id, None)

    async def verify_snapshot(self, snapshot_id: str) -> None:
        self._called("verify_snapshot", snapshot_id)
        if snapshot_id in self.knobs.damaged:
            raise SnapshotDamagedError(f"snapshot {snapshot_id} is damaged")

    async def snapshots(self) -> list[SnapshotImage]:
        self._called("snapshots", "")
        return list(self.images.values())

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

    async def ensure_template(
        self,
        name: str,
        *,
        wait: float = 0,
        anew: bool = False,
        login: RegistryLogin | None = None,
    ) -> TemplateProgress:
        self._called("ensure_template", name)
        self.logins.append(login)
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

    def _keep(
        self, sandbox_id: str, snapshot_id: str, memory: bool, parent: str | None
    ) -> SnapshotImage:
        spec = self.running.get(sandbox_id) or self.hot[sandbox_id]
        image = SnapshotImage(
            id=snapshot_id,
            template=spec.template,
            template_digest=BASE.digest,
            resources=spec.resources,
            created_at=1_800_000_000.0,
            has_memory=memory,
            fingerprint=None,
            disk_bytes=3000,
            own_bytes=1000,
            memory_bytes=500 if memory else 0,
            parent=parent,
        )
        self.images[snapshot_id] = image
        return image

    def _restore_mode(self, spec: SandboxSpec) -> RestoreMode:
        image = self.images.get(spec.snapshot or "")
        if image is None:
            raise NotFoundError(f"there is no snapshot {spec.snapshot!r}")
        warm = image.has_memory and self.knobs.restorable and not spec.reboot
        return RestoreMode.WARM if warm else RestoreMode.DISK

    def _described(self, spec: SandboxSpec, mode: RestoreMode | None = None) -> RunningSandbox:
        image = self.images.get(spec.snapshot or "")
        damaged = image is not None and image.has_memory and not self.knobs.restorable
        return RunningSandbox(
            spec.sandbox_id,
            Address("127.0.0.1", 1),
            "127.0.0.1",
            self.infos["base"],
            "fake",
            restored=mode,
            note="its memory could not be restored" if damaged else None,
        )


def _within(volume: tempfile.TemporaryDirectory[str]) -> tuple[Path, Path]:
    return Path(volume.name, "content"), Path(volume.name, "staging")
