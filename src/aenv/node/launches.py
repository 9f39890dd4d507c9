"""From a spec to a running sandbox, or to nothing at all: what fails or is cancelled is undone.

A sandbox that starts from a snapshot goes on from its memory. If that cannot be restored it boots
from the snapshot's disk instead, runs the template's start command, and says so.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from aenv.models.errors import (
    AgentUnreachableError,
    EngineError,
    ImageUnusableError,
    SnapshotDamagedError,
)
from aenv.models.settings import Settings
from aenv.models.templates import TemplateInfo
from aenv.node.admission import Admission, Demand
from aenv.node.bakes import Bakes, Use
from aenv.node.engine import Engine
from aenv.node.engine_set import EngineSet, require_policy, require_volumes
from aenv.node.machines import Machines, Waiting
from aenv.node.memos import Memos
from aenv.node.origins import Origin, Origins
from aenv.node.port import SandboxSpec
from aenv.node.residents import Resident
from aenv.node.starting import destroy

logger = logging.getLogger(__name__)

ENV_UNKNOWN = "the variables it was created with are not known here: set them anew"
RESTORES = 2
"""How often a memory image is tried that this host should be able to restore."""


class Launcher:
    """Makes residents."""

    def __init__(
        self,
        settings: Settings,
        engines: EngineSet,
        origins: Origins,
        admission: Admission,
        memos: Memos,
        machines: Machines,
        bakes: Bakes,
    ) -> None:
        self._settings = settings
        self._engines = engines
        self._origins = origins
        self._admission = admission
        self._memos = memos
        self._machines = machines
        self._bakes = bakes

    async def launch(
        self,
        spec: SandboxSpec,
        *,
        same_life: bool = False,
        waiting: Waiting | None = None,
        use: Use = Use.SHORTER,
    ) -> Resident:
        """Admit, then boot and start the template's command, or go on from a snapshot; leaves
        nothing on failure. ``same_life``: it is the sandbox of the snapshot, coming back.
        ``waiting``: a machine of this id to make it of, if that works.
        """
        use = Use.NEVER if spec.volumes else use  # such images know of no volumes
        async with self.origin(spec, use, same_life=same_life) as (engine, origin):
            require_policy(engine.capabilities, spec.network)
            require_volumes(engine.capabilities, spec.volumes)
            return await self._launch(origin.completed(spec), engine, origin, waiting)

    @asynccontextmanager
    async def origin(
        self, spec: SandboxSpec, use: Use, *, same_life: bool = False
    ) -> AsyncIterator[tuple[Engine, Origin]]:
        """Hold what a spec starts from, and the engine that can."""
        if spec.snapshot is None:
            engine = await self._engine(spec.engine)
            async with self._origins.template(engine, spec, use) as origin:
                yield engine, origin
            return
        async with self._origins.snapshot(spec.snapshot, spec) as stored:
            engine = await self._engine(spec.engine or stored.manifest.engine)
            of = self._origins.of(stored, engine, spec, use, same_life=same_life)
            async with of as origin:
                yield engine, origin

    async def dismiss(self, resident: Resident) -> None:
        """Take back what was launched and never settled."""
        await resident.machine.destroy()
        self._memos.remove(resident.sandbox_id)

    async def _engine(self, name: str | None) -> Engine:
        return await self._engines.get(name or self._settings.engine)

    async def _launch(
        self, spec: SandboxSpec, engine: Engine, origin: Origin, waiting: Waiting | None
    ) -> Resident:
        demand = Demand(spec.template, spec.resources, origin.image_bytes)
        async with self._admission.admit(demand, engine.disk_room):
            memo = origin.memo(spec)
            self._memos.write(spec.sandbox_id, memo)
            async with AsyncExitStack() as undo:
                undo.callback(self._memos.remove, spec.sandbox_id)
                await self._origins.pin(engine, memo, self._memos.place(spec.sandbox_id))
                resident = await self._bring_up(spec, engine, origin, waiting)
                undo.push_async_callback(destroy, resident.machine)
                resident.memo = replace(memo, ready=True)
                self._memos.write(spec.sandbox_id, resident.memo)
                undo.pop_all()
        return resident

    async def _bring_up(
        self, spec: SandboxSpec, engine: Engine, origin: Origin, waiting: Waiting | None
    ) -> Resident:
        """Of the machine that waits, else from memory, else from its disk."""
        if waiting is not None and waiting.serves(origin):
            try:
                return await self._machines.hand_over(waiting, spec)
            except Exception as error:  # noqa: BLE001 - whatever it is, another machine is made
                about = {"sandbox_id": spec.sandbox_id}
                logger.warning("a machine that waited is of no use: %r", error, extra=about)
        if waiting is not None:
            await waiting.discard()
        note = origin.note
        for _ in range(RESTORES if origin.memory else 0):
            try:
                return await self._machines.restore(spec, engine, origin)
            except SnapshotDamagedError:
                raise
            except (EngineError, AgentUnreachableError) as error:
                note = f"its memory could not be restored ({error}): it was booted from its disk"
                if isinstance(error, ImageUnusableError):
                    break
        if origin.memory is not None:
            self._lament(spec, origin)
        if not (origin.env_known or spec.env_vars):
            note = f"{note}; {ENV_UNKNOWN}" if note else ENV_UNKNOWN
        if note:
            logger.warning("%s", note, extra={"sandbox_id": spec.sandbox_id})
        resident = await self._machines.boot(spec, engine, origin.fallback)
        resident.note = note
        return resident

    def _lament(self, spec: SandboxSpec, origin: Origin) -> None:
        """Its memory was tried in vain."""
        if origin.plain is not None and origin.stored is not None:
            self._bakes.failed(origin.stored.manifest.id)
        elif spec.snapshot is not None and not (origin.same_life or spec.volumes):
            self._bakes.strand(spec.snapshot)

    async def template(self, engine: Engine, name: str, digest: str | None) -> TemplateInfo:
        """What is known of a template for a sandbox that already runs."""
        return await self._origins.known(engine, name, digest)
