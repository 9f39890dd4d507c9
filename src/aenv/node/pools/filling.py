"""Making one machine that waits, and before it the memory image that makes it start with the
template's command running.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from aenv.models.errors import AenvError
from aenv.node.bakes import BakeKey, Bakes, Use
from aenv.node.baking import Baker, nobody
from aenv.node.engine import Engine
from aenv.node.launches import Launcher
from aenv.node.machines import Machines, Waiting
from aenv.node.memos import Memos
from aenv.node.origins import Origin, Origins
from aenv.node.pools.demand import PoolKey
from aenv.node.pools.shelf import Pooled
from aenv.node.port import SandboxSpec

logger = logging.getLogger(__name__)

Room = Callable[[PoolKey, Engine], Awaitable[bool]]


class Filling:
    """``room``: whether the host holds one more sandbox without giving up anything."""

    def __init__(
        self,
        launcher: Launcher,
        machines: Machines,
        origins: Origins,
        memos: Memos,
        bakes: Bakes,
        baker: Baker,
        room: Room,
    ) -> None:
        self._launcher = launcher
        self._machines = machines
        self._origins = origins
        self._memos = memos
        self.bakes = bakes
        self._baker = baker
        self._room = room

    async def possible(self, key: PoolKey) -> bool:
        """Whether the engine freezes machines, and the host has room for one. Raises AenvError."""
        async with self._launcher.origin(self._spec(key), Use.NEVER) as (engine, _):
            if not engine.capabilities.freeze:
                return False
            return await self._room(key, engine)

    async def bake(self, key: PoolKey) -> bool:
        """Make the memory image that is lacking; False if none is."""
        spec = self._spec(key)
        async with self._launcher.origin(spec, Use.SHORTER) as (engine, origin):
            name = await self._lacking(spec, engine, origin)
        if name is None:
            return False
        try:
            await self._baker.bake(spec, engine)
        except AenvError as error:
            logger.warning("the memory of template %s was not baked: %s", key.template, error)
            self.bakes.gave_up(name)
        return True

    async def make(self, key: PoolKey) -> Pooled:
        """Raises AenvError, and leaves nothing then."""
        spec = self._spec(key)
        async with self._launcher.origin(spec, Use.SHORTER) as (engine, origin):
            bake_key = BakeKey.of(spec, engine, origin.info)
            name = await self.bakes.name(bake_key)
        use = Use.ALWAYS if self.bakes.unmeasured(name) else Use.SHORTER
        async with self._launcher.origin(spec, use) as (engine, origin):
            began = time.monotonic()
            waiting, memory = await self._prepare(origin.completed(spec), engine, origin)
            if key.snapshot is None:
                took = time.monotonic() - began
                self.bakes.took(name, took, restored=origin.memory is not None)
        return Pooled(spec.sandbox_id, key, waiting, memory)

    async def _prepare(
        self, spec: SandboxSpec, engine: Engine, origin: Origin
    ) -> tuple[Waiting, int]:
        memo = origin.memo(spec)
        self._memos.write(spec.sandbox_id, memo)
        async with AsyncExitStack() as undo:
            undo.callback(self._memos.remove, spec.sandbox_id)
            await self._origins.pin(engine, memo, self._memos.place(spec.sandbox_id))
            try:
                waiting = await self._machines.prepare(spec, engine, origin)
            except AenvError:
                if origin.plain is not None and origin.stored is not None:
                    self.bakes.failed(origin.stored.manifest.id)
                raise
            undo.push_async_callback(waiting.discard)
            memory = await waiting.machine.memory_used()
            undo.pop_all()
        return waiting, memory

    async def _lacking(self, spec: SandboxSpec, engine: Engine, origin: Origin) -> str | None:
        """The name of the image that should be there and is not. A snapshot has its own memory,
        and needs one only when that cannot be restored or was left out.
        """
        key = BakeKey.of(spec, engine, origin.info)
        if spec.snapshot is not None:
            whole = origin.memory is not None and not self.bakes.is_stranded(spec.snapshot)
            if whole or origin.plain is not None or origin.note is not None:
                return None
        return await self.bakes.name(key) if await self.bakes.lacks(key, engine) else None

    def _spec(self, key: PoolKey) -> SandboxSpec:
        return nobody(key.template, key.resources, snapshot=key.snapshot, engine=key.engine)
