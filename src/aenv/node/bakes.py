"""Memory images of templates: each a stored snapshot of a sandbox that was booted for it, with the
template's start command running.

An image is named by all that it depends on (:class:`BakeKey`), so one that serves no more is simply
not found, and dropped at the next start. It is nobody's snapshot: it is not listed, not pinned, and
gone with its template. A snapshot whose own memory cannot be restored here may have one, too.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from aenv.models.sandboxes import Resources
from aenv.models.settings import Settings
from aenv.models.snapshots import SNAPSHOT_ID
from aenv.models.templates import TemplateInfo
from aenv.node.engine import Engine
from aenv.node.port import SandboxSpec
from aenv.node.snapshots.manifest import Manifest
from aenv.node.snapshots.store import SnapshotStore, Stored

logger = logging.getLogger(__name__)

MOST = 16
_DIGITS = "abcdefghijklmnopqrstuvwxyz012345"


class Use(StrEnum):
    """SHORTER: if that takes less time than a boot."""

    NEVER = "never"
    SHORTER = "shorter"
    ALWAYS = "always"


@dataclass(frozen=True, slots=True)
class BakeKey:
    """``format``: what restores the engine's images. ``snapshot``: whose disk, instead of the
    template alone.
    """

    info: TemplateInfo
    resources: Resources
    engine: str
    format: str
    snapshot: str | None = None

    @classmethod
    def of(cls, spec: SandboxSpec, engine: Engine, info: TemplateInfo) -> BakeKey:
        name = engine.capabilities.engine
        return cls(info, spec.resources, name, engine.memory_format, spec.snapshot)

    @classmethod
    def in_manifest(cls, facts: Manifest, engine: Engine, info: TemplateInfo) -> BakeKey:
        info = facts.facts.over(info) if facts.facts else info
        return cls(info, facts.resources, facts.engine, engine.memory_format, facts.parent)

    def facts(self) -> dict[str, object]:
        """All that a sandbox of this kind is made of."""
        info = self.info
        return {
            "template": (info.name, info.digest),
            "commands": (info.start, info.ready_cmd),
            "surroundings": (info.default_user, info.workdir, sorted(info.env.items())),
            "resources": asdict(self.resources),
            "engine": (self.engine, self.format),
            "snapshot": self.snapshot,
        }


@dataclass(slots=True)
class _Pace:
    """Seconds until a guest answered, of the last one that was booted and restored."""

    boot: float | None = None
    restore: float | None = None


class Bakes:
    """``drop_disk`` frees the disk image of that name. ``agent`` is part of every image."""

    def __init__(
        self, settings: Settings, agent: Path, drop_disk: Callable[[str], Awaitable[None]]
    ) -> None:
        self._folder = settings.folders.data / "baked"
        self.store = SnapshotStore(self._folder)
        self.enabled = settings.template_memory
        self._host_ca = settings.inject_host_ca
        self._agent = agent
        self._drop_disk = drop_disk
        self._build: str | None = None
        self._paces: dict[str, _Pace] = {}
        self._used: dict[str, float] = {}
        self._failures: dict[str, int] = {}
        self._stranded: set[str] = set()
        self._dropping: set[asyncio.Task[None]] = set()

    async def open(self) -> frozenset[str]:
        """Read what is there; its ids, which are those of its disk images too."""
        names = await asyncio.to_thread(_names_in, self._folder)
        await self.store.open(names)
        for name in self.store.damaged():  # a new one is made; its disk goes as nobody's
            await self.store.delete(name, _no_disk)
        return frozenset(stored.manifest.id for stored in self.store.all())

    async def close(self) -> None:
        await asyncio.gather(*self._dropping, return_exceptions=True)
        await self.store.close()

    async def name(self, key: BakeKey) -> str:
        """The id of the image for ``key``, whether there is one or not."""
        if self._build is None:
            self._build = await asyncio.to_thread(_digest, self._agent)
        facts = {**key.facts(), "agent": self._build, "host_ca": self._host_ca}
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()
        return "s" + "".join(_DIGITS[byte % len(_DIGITS)] for byte in digest[:19])

    @asynccontextmanager
    async def using(
        self, key: BakeKey, use: Use, *, commands: bool
    ) -> AsyncIterator[Stored | None]:
        """Hold the image if there is one and it is to be used. With ``commands`` of the template
        to wait for, a boot is never shorter.
        """
        name = await self.name(key) if self.enabled and use is not Use.NEVER else None
        if name not in self.store or name is None:
            yield None
        elif use is Use.ALWAYS or commands or self._is_shorter(name):
            self._used[name] = time.monotonic()
            async with self.store.using(name) as stored:
                yield stored
        else:
            yield None

    async def lacks(self, key: BakeKey, engine: Engine) -> bool:
        """Whether one may be made: it has not failed twice."""
        if not self.enabled or not engine.capabilities.memory_snapshot:
            return False
        name = await self.name(key)
        return name not in self.store and self._failures.get(name, 0) < 2

    def took(self, name: str, seconds: float, *, restored: bool) -> None:
        pace = self._paces.setdefault(name, _Pace())
        if restored:
            pace.restore = seconds
        else:
            pace.boot = seconds

    def unmeasured(self, name: str) -> bool:
        """Whether it is not known yet how long a restore takes."""
        return self._paces.get(name, _Pace()).restore is None

    def failed(self, name: str) -> None:
        """It could not be restored: it is dropped when those who hold it have let go, and may be
        made anew once.
        """
        logger.warning("the memory image %s could not be restored and is dropped", name)
        self.gave_up(name)
        self._paces.pop(name, None)
        task = asyncio.create_task(self.drop(name), name=f"drop-{name}")
        self._dropping.add(task)
        task.add_done_callback(self._dropping.discard)

    def gave_up(self, name: str) -> None:
        """It could not be made."""
        self._failures[name] = self._failures.get(name, 0) + 1

    def strand(self, snapshot_id: str) -> None:
        """A snapshot's own memory cannot be restored here: it may have one that is baked."""
        self._stranded.add(snapshot_id)

    def is_stranded(self, snapshot_id: str) -> bool:
        return snapshot_id in self._stranded

    async def drop(self, name: str) -> None:
        await self.store.delete(name, lambda: self._drop_disk(name))

    async def drop_of(self, *, template: str | None = None, snapshot: str | None = None) -> None:
        """Those of a template or a snapshot that is about to go."""
        for stored in self.store.all():
            facts = stored.manifest
            if template == facts.template or (snapshot and snapshot == facts.parent):
                await self.drop(facts.id)

    async def prune(
        self,
        engines: Iterable[Engine],
        templates: Iterable[TemplateInfo],
        snapshots: Collection[str],
    ) -> None:
        """Drop what serves no more: of another release or agent, of a template or a snapshot that
        is not among these.
        """
        infos = {(info.name, info.digest): info for info in templates}
        names = {engine.capabilities.engine: engine for engine in engines}
        for stored in self.store.all():
            facts = stored.manifest
            engine = names.get(facts.engine)
            if engine is None:
                continue
            info = infos.get((facts.template, facts.template_digest))
            if (
                info is None
                or (facts.parent is not None and facts.parent not in snapshots)
                or await self.name(BakeKey.in_manifest(facts, engine, info)) != facts.id
            ):
                await self.drop(facts.id)

    async def make_room(self) -> None:
        """Keep no more than ``MOST``: those that were used last."""
        found = [stored.manifest.id for stored in self.store.all()]
        found.sort(key=lambda name: self._used.get(name, 0.0))
        for name in found[: max(0, len(found) - MOST + 1)]:
            await self.drop(name)

    def bytes(self) -> int:
        """Of all memory images; their disks are the engine's to count."""
        return sum(sum(one.manifest.memory.values()) for one in self.store.all())

    def _is_shorter(self, name: str) -> bool:
        pace = self._paces.get(name, _Pace())
        return bool(pace.boot and pace.restore and pace.restore < pace.boot)


def _names_in(folder: Path) -> frozenset[str]:
    if not folder.is_dir():
        return frozenset()
    return frozenset(path.name for path in folder.iterdir() if re.match(SNAPSHOT_ID, path.name))


async def _no_disk() -> None: ...


def _digest(agent: Path) -> str:
    with agent.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
