"""The rooms of builds, put together: what serves uploads, builds, and built templates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from aenv.control.builds.archives import Archives
from aenv.control.builds.bases import Bases
from aenv.control.builds.benches import Benches
from aenv.control.builds.journals import Journals
from aenv.control.builds.layers import Layers
from aenv.control.builds.library import Library
from aenv.control.builds.runs import Runs
from aenv.control.builds.service import Builds
from aenv.control.builds.startups import Patience
from aenv.control.builds.steps import Steps
from aenv.control.clocks import Clock
from aenv.control.idling import Activity
from aenv.control.images import Images
from aenv.control.templates import Templates
from aenv.models.settings import Settings
from aenv.node.port import Node
from aenv.store.catalog import Catalog

MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class BuildHouse:
    archives: Archives
    library: Library
    layers: Layers
    builds: Builds

    @classmethod
    def of(
        cls,
        settings: Settings,
        catalog: Catalog,
        node: Node,
        clock: Clock,
        images: Images,
        templates: Templates,
        activity: Activity,
        patience: Patience,
    ) -> Self:
        bounds, folder = settings.builds, settings.folders.data / "builds"
        archives = Archives(
            folder / "files",
            clock,
            most=bounds.files_mb * MIB,
            reserve=settings.disk_reserve_mb * MIB,
        )
        library = Library(catalog, images, clock)
        layers = Layers(catalog, node, images, clock, most_bytes=bounds.cache_mb * MIB)
        benches = Benches(node, clock, settings.engine)
        bases = Bases(templates, library)
        runs = Runs(bases, benches, layers, Steps(archives), images, patience)
        journals = Journals(folder / "logs", clock)
        builds = Builds(
            catalog,
            library,
            journals,
            runs,
            images,
            activity,
            clock,
            at_once=bounds.at_once,
            host_registries=bounds.host_registries,
        )
        return cls(archives, library, layers, builds)

    async def open(self) -> None:
        """Before the node starts: settle what a stopped server left."""
        await self.library.open()
        await self.archives.open()
        await self.builds.open()
