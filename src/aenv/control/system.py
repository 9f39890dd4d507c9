"""The composition: every service of control over one catalog and one node, opened and closed as a
whole.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import structlog

from aenv.control import adoption, cold
from aenv.control.background import Background
from aenv.control.belated import Belated
from aenv.control.boots import Boots
from aenv.control.builds.house import BuildHouse
from aenv.control.builds.startups import Patience
from aenv.control.clocks import Clock, SystemClock
from aenv.control.cold import Cold
from aenv.control.creation import Creation
from aenv.control.doors import Doors
from aenv.control.endings import Endings
from aenv.control.events import Events
from aenv.control.exits import Exits
from aenv.control.forks import Forks
from aenv.control.hosts import Hosts
from aenv.control.idling import Activity, IdleWatch
from aenv.control.images import Images
from aenv.control.keys import Keys
from aenv.control.observations import Observations
from aenv.control.pauses import Pauses
from aenv.control.reaper import Reaper
from aenv.control.resumes import Resumes
from aenv.control.routes import RouteTable
from aenv.control.sandboxes import Sandboxes
from aenv.control.services import Services
from aenv.control.snapshots import Snapshots
from aenv.control.starts import Starts
from aenv.control.storage import Storage
from aenv.control.telemetry import Telemetry
from aenv.control.templates import Templates
from aenv.control.turns import Turns
from aenv.control.volumes import Volumes
from aenv.models.errors import AenvError
from aenv.models.sandboxes import EndKind
from aenv.models.settings import Settings
from aenv.node.port import Node
from aenv.store.catalog import Catalog

log = structlog.get_logger()
CATALOG = "catalog.sqlite"
CLOSE_GRACE = 10.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds: how long a create waits for a template, the reaper's longest sleep, the first pause
    before a destroy is tried again, between attempts to keep what was paused on a full disk.
    ``cold_*``: before a snapshot is put into the blob store, and between two looks at them.
    ``patience``: with the commands of a template that is built.
    """

    template_wait: float = 45.0
    tick: float = 0.5
    retry_pause: float = 1.0
    keep_again: float = 30.0
    cold_lull: float = cold.LULL
    cold_every: float = cold.EVERY
    patience: Patience = field(default_factory=Patience)


class System:
    """``stop`` is set when the server is to end. Closing leaves sandboxes running."""

    def __init__(
        self, settings: Settings, node: Node, catalog: Catalog, clock: Clock, timing: Timing
    ) -> None:
        """Composes only; use :meth:`open`."""
        self.settings = settings
        self.node = node
        self.catalog = catalog
        self.stop = asyncio.Event()
        self._for_good = False
        self.routes = RouteTable()
        self.telemetry = Telemetry()
        self.activity = Activity(clock)
        self.keys = Keys(catalog, clock)
        self.templates = Templates(catalog, node, wait=timing.template_wait)
        self.volumes = Volumes(catalog, node, clock)
        self.storage = Storage(settings, catalog, node)
        self.hosts = Hosts(catalog, node, self.telemetry)
        self.doors = Doors()
        self._loops: list[asyncio.Task[None]] = []
        self._background = Background()
        self._boots = Boots()
        turns = Turns(catalog, self._background, retry_pause=timing.retry_pause)
        self.cold = Cold(
            settings,
            catalog,
            node,
            clock,
            self.storage,
            turns,
            lull=timing.cold_lull,
            every=timing.cold_every,
        )
        self._endings = Endings(
            catalog,
            node,
            self.routes,
            clock,
            self._boots,
            self.telemetry,
            self._background,
            turns,
            retry_pause=timing.retry_pause,
        )
        self._reaper = Reaper(
            catalog,
            node,
            clock,
            self._endings,
            self._boots,
            self._background,
            expire=lambda record: self.sandboxes.expire(record),
            tick=timing.tick,
        )
        self._exits = Exits(node, self._endings, self._background)
        services = Services(
            catalog=catalog,
            node=node,
            routes=self.routes,
            clock=clock,
            cold=self.cold,
            boots=self._boots,
            turns=turns,
            doors=self.doors,
            endings=self._endings,
            events=Events(node),
            templates=self.templates,
            volumes=self.volumes,
            telemetry=self.telemetry,
            background=self._background,
            settings=settings,
            deadline=self._reaper.deadline,
        )
        images = self._images = Images(
            node, catalog, clock, self._background, pause=timing.retry_pause
        )
        self.snapshots = Snapshots(services, images)
        self._belated = Belated(services, images, every=timing.keep_again)
        self.building = BuildHouse.of(
            settings, catalog, node, clock, images, self.templates, self.activity, timing.patience
        )
        starts = Starts(node, self.templates, self.snapshots, self.building.library, settings)
        self._creation = Creation(services, starts)
        self.forks = Forks(services, self._creation, self.snapshots)
        self.sandboxes = Sandboxes(
            services, self._creation, Pauses(services, images), Resumes(services, images)
        )
        self.observations = Observations(self.sandboxes, node)

    @classmethod
    async def open(
        cls,
        settings: Settings,
        node: Node,
        *,
        clock: Clock | None = None,
        timing: Timing | None = None,
    ) -> System:
        """Open the catalog, take over what runs, start the loops. On failure nothing stays open."""
        catalog = await Catalog.open(settings.folders.data / CATALOG)
        system = cls(settings, node, catalog, clock or SystemClock(), timing or Timing())
        try:
            await system._start()
        except BaseException:
            await system.close()
            raise
        return system

    @property
    def domain(self) -> str:
        """What replies name as the sandboxes' domain: ours, never null, with the TLS port if there
        is one.
        """
        name = self.settings.domain
        port = self.settings.tls.port
        if name and (":" in name or port is None):
            return name
        return f"{name or 'localhost'}:{port if port is not None else self.settings.port}"

    async def close(self) -> None:
        """Stop the loops, call off half-made sandboxes, let go of the node and the catalog. Where
        no sandbox is left, the node leaves nothing on the host.
        """
        self._creation.closed = True
        await self.building.builds.close()
        for loop in self._loops:
            loop.cancel()
        if self._loops:
            await asyncio.wait(self._loops, timeout=5)
        await self.cold.close()
        await self._call_off()
        await self._background.close(CLOSE_GRACE)
        try:
            async with asyncio.timeout(CLOSE_GRACE):
                await self.node.close()
                if not await self.node.clear() and self._for_good:
                    log.warning("the run folder is still in use")
        except Exception as error:  # noqa: BLE001 - the catalog must be closed all the same
            log.error("node not closed well", error=repr(error))
        await self.catalog.close()

    async def shut_down(self, *, kill: bool) -> tuple[int, list[str]]:
        """Have the server end; with ``kill`` its sandboxes first (how many were, which could not
        be).
        """
        self._creation.closed = True
        self._for_good = kill
        try:
            return await self.sandboxes.kill_all() if kill else (0, [])
        finally:
            self.stop.set()

    async def _start(self) -> None:
        await self.keys.open(self.settings.folders, self.settings.api_key)
        await self.building.open()
        await adoption.adopt(self.catalog, self.node, self.routes, self._endings, self._images)
        await self.volumes.reap()
        self._run(self._reaper.run(), "reaper")
        self._run(self._exits.run(), "exits")
        self._run(self._belated.run(), "belated images")
        self._run(self.cold.run(), "cold snapshots")
        if self.settings.idle_exit is not None:
            seconds = self.settings.idle_exit
            watch = IdleWatch(self.catalog, self.node, self.activity, seconds, self.stop.set)
            self._run(watch.run(), "idle watch")

    def _run(self, loop: Coroutine[Any, Any, None], name: str) -> None:
        self._loops.append(asyncio.create_task(loop, name=name))

    async def _call_off(self) -> None:
        for sandbox_id in list(self._boots.making):
            with suppress(AenvError):
                await self._endings.end(
                    sandbox_id, EndKind.CREATE_FAILED, "the server was stopped meanwhile"
                )


async def open_local(settings: Settings) -> System:
    """A system over this host's own node."""
    from aenv.node.local import LocalNode

    return await System.open(settings, LocalNode(settings))
