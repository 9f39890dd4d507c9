"""What the services of sandboxes work with, composed once by ``system``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from aenv.control.background import Background
from aenv.control.boots import Boots
from aenv.control.clocks import Clock
from aenv.control.cold import Cold
from aenv.control.doors import Doors
from aenv.control.endings import Endings
from aenv.control.events import Events
from aenv.control.routes import RouteTable
from aenv.control.telemetry import Telemetry
from aenv.control.templates import Templates
from aenv.control.turns import Turns
from aenv.control.volumes import Volumes
from aenv.models.settings import Settings
from aenv.node.port import Node
from aenv.store.catalog import Catalog


@dataclass(frozen=True, slots=True)
class Services:
    """``deadline`` is told of every new deadline, so that the reaper is there in time."""

    catalog: Catalog
    node: Node
    routes: RouteTable
    clock: Clock
    cold: Cold
    boots: Boots
    turns: Turns
    doors: Doors
    endings: Endings
    events: Events
    templates: Templates
    volumes: Volumes
    telemetry: Telemetry
    background: Background
    settings: Settings
    deadline: Callable[[int], None]
