"""The engines of this node: built and started when first asked for, let go together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable

from aenv.models.errors import AenvError, CapabilityError, HostSetupError, InvalidRequestError
from aenv.models.sandboxes import NetworkPolicy
from aenv.models.settings import Settings
from aenv.models.volumes import VolumeMount
from aenv.node.engine import Capabilities, Engine, Finding

logger = logging.getLogger(__name__)

EngineFactory = Callable[[str, Settings], Engine]


class EngineSet:
    """``names``: the engines this platform knows.

    An engine that is started first destroys what is not in ``keep`` (engine name → sandbox ids that
    should still run): ``reaped`` tells what that was.
    """

    def __init__(self, settings: Settings, names: Iterable[str], factory: EngineFactory) -> None:
        self._settings = settings
        self._names = tuple(names)
        self._factory = factory
        self._built: dict[str, Engine] = {}
        self._started: set[str] = set()
        self._lock = asyncio.Lock()
        self.keep: dict[str, frozenset[str]] = {}
        self.reaped: list[str] = []

    @property
    def names(self) -> tuple[str, ...]:
        return self._names

    def capabilities(self) -> tuple[Capabilities, ...]:
        return tuple(self._engine(name).capabilities for name in self._names)

    async def get(self, name: str) -> Engine:
        """The engine, started. Raises InvalidRequestError (unknown), HostSetupError."""
        if name in self._started:
            return self._built[name]
        async with self._lock:
            engine = self._engine(name)
            if name not in self._started:
                await engine.start()
                self.reaped += await engine.reap(self.keep.get(name, frozenset()))
                self._started.add(name)
            return engine

    def started(self) -> tuple[Engine, ...]:
        return tuple(self._built[name] for name in sorted(self._started))

    async def get_if_possible(self, name: str) -> Engine | None:
        """The engine, or None where the host cannot run it."""
        try:
            return await self.get(name)
        except HostSetupError as error:
            logger.info("engine %s is not available: %s", name, error)
            return None

    async def drop_disk(self, name: str) -> None:
        """Free a kept copy of a disk, of whichever engine. Idempotent."""
        for engine in self.started():
            if engine.capabilities.disk_snapshot:
                await engine.drop_disk(name)

    async def probe(self) -> list[Finding]:
        findings = await asyncio.gather(*(self._engine(name).probe() for name in self._names))
        return [finding for part in findings for finding in part]

    async def close(self) -> None:
        for name in sorted(self._started):
            self._started.discard(name)
            try:
                await self._built[name].close()
            except AenvError as error:
                logger.warning("engine %s did not close cleanly: %s", name, error)

    def _engine(self, name: str) -> Engine:
        if name not in self._names:
            known = ", ".join(self._names)
            raise InvalidRequestError(f"unknown engine {name!r}; this host knows {known}")
        if name not in self._built:
            self._built[name] = self._factory(name, self._settings)
        return self._built[name]


def require_policy(capabilities: Capabilities, policy: NetworkPolicy) -> None:
    """Raise CapabilityError if the engine cannot enforce what ``policy`` restricts."""
    restricted = {
        "allow_internet_access=false": not policy.allow_internet,
        "denyOut": bool(policy.deny_out),
        "dnsServers": bool(policy.dns_servers),
    }
    asked = [name for name, wanted in restricted.items() if wanted]
    if asked and not capabilities.egress_policy:
        raise CapabilityError(
            f"the engine {capabilities.engine!r} cannot enforce {', '.join(asked)}; leave them "
            "out, or use an engine with an egress policy such as gvisor"
        )


def require_volumes(capabilities: Capabilities, volumes: Collection[VolumeMount]) -> None:
    """Raise CapabilityError if the engine mounts no volumes, and some are asked for."""
    if volumes and not capabilities.volumes:
        raise CapabilityError(
            f"volumeMounts: the engine {capabilities.engine!r} mounts no volumes; leave them out, "
            "or use gvisor"
        )
