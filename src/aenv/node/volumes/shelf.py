"""Volumes of a node: in the store of the first of its engines that mounts any."""

from __future__ import annotations

from aenv.models.errors import EngineError
from aenv.models.volumes import VolumeUse
from aenv.node.engine_set import EngineSet
from aenv.node.port import no_volumes
from aenv.node.volumes.content import VolumeContent
from aenv.node.volumes.files import LocalContent
from aenv.node.volumes.store import VolumeStore


class Volumes:
    def __init__(self, engines: EngineSet) -> None:
        self._engines = engines

    async def make(self, volume_id: str, size_mb: int) -> None:
        await (await self._store()).make(volume_id, size_mb)

    async def drop(self, volume_id: str) -> None:
        await (await self._store()).drop(volume_id)

    async def drop_of(self, sandbox_id: str) -> None:
        """Delete the copies of a sandbox that has ended."""
        for store in self._open():
            await store.drop_of(sandbox_id)

    async def reap(self, keep: frozenset[str]) -> list[str]:
        """Of engines that run."""
        return [name for store in self._open() for name in await store.reap(keep)]

    async def use(self, volume_id: str) -> VolumeUse:
        try:
            return await (await self._store()).use(volume_id)
        except OSError as error:
            raise EngineError(f"the volume {volume_id} is gone: {error}") from error

    async def content(self, volume_id: str) -> VolumeContent:
        return LocalContent(await (await self._store()).folder(volume_id))

    async def _store(self) -> VolumeStore:
        for capabilities in self._engines.capabilities():
            if capabilities.volumes:
                engine = await self._engines.get(capabilities.engine)
                if engine.volumes is not None:
                    return engine.volumes
        raise no_volumes()

    def _open(self) -> list[VolumeStore]:
        found = (engine.volumes for engine in self._engines.started())
        return [store for store in found if store is not None]
