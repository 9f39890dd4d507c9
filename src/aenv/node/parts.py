"""What a node is made of on this host; a test makes one of other parts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import aenv
from aenv.models.errors import HostSetupError
from aenv.models.settings import Settings
from aenv.node.engine_set import EngineSet
from aenv.node.engines import available, create_engine
from aenv.node.host import Host, open_host
from aenv.node.hosts import Headroom, measure_headroom, memory_total
from aenv.node.images import ImageStore
from aenv.node.memory import Gauges
from aenv.node.memory_groups import stall_file
from aenv.node.origins import Images
from aenv.node.pools import PoolBounds
from aenv.node.stalls import StallMeter
from aenv.node.usage import MIB

_HOT_SHARE = 4
_WARM_SHARE = 8


@dataclass(frozen=True, slots=True)
class NodeParts:
    """What a node is made of. ``agent``: the binary; ``measure``: what the host has left;
    ``host``: its mounts, with the rights for them; ``stalls``: how much its tasks wait for memory.
    """

    engines: EngineSet
    images: Images
    agent: Path
    measure: Callable[[], Headroom]
    host: Host | None = None
    stalls: StallMeter = field(default_factory=lambda: StallMeter(stall_file()))

    @classmethod
    def of_this_host(cls, settings: Settings) -> Self:
        data, instance = settings.folders.data, settings.folders.instance
        host = _host_if_root(settings)
        return cls(
            engines=EngineSet(settings, available(), create_engine),
            images=ImageStore(settings, host),
            agent=Path(aenv.__file__).parent / "_bin" / "agent",
            measure=lambda: measure_headroom(data, instance),
            host=host,
        )

    @property
    def gauges(self) -> Gauges:
        return Gauges(self.measure, self.stalls)


def hot_budget(settings: Settings) -> int:
    """Bytes of memory that paused sandboxes may keep."""
    if settings.hot_memory_mb is None:
        return memory_total() // _HOT_SHARE
    return settings.hot_memory_mb * MIB


def pool_bounds(settings: Settings) -> PoolBounds:
    memory = settings.warm_memory_mb
    return PoolBounds(
        most=settings.warm_max,
        memory=memory_total() // _WARM_SHARE if memory is None else memory * MIB,
        idle=settings.warm_idle,
    )


def _host_if_root(settings: Settings) -> Host | None:
    try:
        return open_host(settings)
    except HostSetupError:
        return None
