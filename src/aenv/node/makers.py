"""What makes sandboxes on a node, put together: the launcher, and what makes it quick."""

from __future__ import annotations

from collections.abc import Callable

from aenv.models.settings import Settings
from aenv.node.admission import Admission, Demand
from aenv.node.bakes import Bakes
from aenv.node.baking import UNPINNED, Baker
from aenv.node.captures import Capturer
from aenv.node.engine import Engine
from aenv.node.launches import Launcher
from aenv.node.logs import LogKeeper
from aenv.node.lowers import Lowers
from aenv.node.machines import Machines
from aenv.node.memos import Memos
from aenv.node.origins import Origins
from aenv.node.parts import NodeParts, pool_bounds
from aenv.node.pools import Filling, PoolKey, Pools
from aenv.node.snapshots.store import SnapshotStore


class Makers:
    """``busy``: whether a create is under way."""

    def __init__(
        self,
        settings: Settings,
        parts: NodeParts,
        lowers: Lowers,
        snapshots: SnapshotStore,
        logs: LogKeeper,
        memos: Memos,
        admission: Admission,
        busy: Callable[[], bool],
    ) -> None:
        async def room(key: PoolKey, engine: Engine) -> bool:
            demand = Demand(key.template, key.resources)
            return await admission.spare(demand, engine.disk_room)

        self.bakes = Bakes(settings, parts.agent, parts.engines.drop_disk)
        self.machines = Machines(settings, parts.agent)
        origins = Origins(parts.images, lowers, snapshots, self.bakes)
        self.launcher = Launcher(
            settings, parts.engines, origins, admission, memos, self.machines, self.bakes
        )
        baker = Baker(self.bakes, self.launcher, Capturer(self.bakes.store, logs, UNPINNED))
        filling = Filling(self.launcher, self.machines, origins, memos, self.bakes, baker, room)
        self.pools = Pools(pool_bounds(settings), settings.engine, filling, memos, busy)
