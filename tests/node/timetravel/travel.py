"""A real node on gVisor with folders of its own, and sandboxes whose guests can be asked things."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path

from tests.fakes.waiting import until

from aenv.models.folders import Folders
from aenv.models.ids import new_sandbox_id
from aenv.models.sandboxes import NetworkPolicy, Resources
from aenv.models.settings import Settings
from aenv.node.agents import AgentClient
from aenv.node.engine_set import EngineSet
from aenv.node.engines import create_engine
from aenv.node.host import open_host
from aenv.node.hosts import measure_headroom
from aenv.node.images import ImageStore
from aenv.node.local import LocalNode, NodeParts
from aenv.node.origins import Images
from aenv.node.port import Adoption, AdoptRequest, RunningSandbox, SandboxSpec

SMALL = Resources(cpu=2, memory_mb=512, disk_mb=512)
TEMPLATE = "host"


def settings_in(root: Path, *, hot_memory_mb: int = 4096) -> Settings:
    folders = Folders(root / "data", root / "cache", root / "config", root / "run")
    return Settings(
        folders=folders,
        pool_mb=2048,
        disk_reserve_mb=64,
        memory_reserve_mb=64,
        network_slots=4,
        hot_memory_mb=hot_memory_mb,
    )


def make_node(settings: Settings, agent: Path, images: Images | None = None) -> LocalNode:
    host = open_host(settings)
    parts = NodeParts(
        engines=EngineSet(settings, ("gvisor", "process"), create_engine),
        images=images or ImageStore(settings, host),
        agent=agent,
        measure=lambda: measure_headroom(settings.folders.data),
        host=host,
    )
    return LocalNode(settings, parts)


def make_spec(**changes: object) -> SandboxSpec:
    sandbox_id = str(changes.pop("sandbox_id", None) or new_sandbox_id())
    spec = SandboxSpec(
        sandbox_id=sandbox_id,
        template=TEMPLATE,
        resources=SMALL,
        network=NetworkPolicy(),
        access_token=f"token-{sandbox_id}",
        host_secret=f"secret-{sandbox_id}",
    )
    return replace(spec, **changes)  # type: ignore[arg-type]


def new_snapshot_id() -> str:
    return "s" + new_sandbox_id()[1:]


@dataclass
class Guest:
    """A sandbox that runs, seen through its agent."""

    spec: SandboxSpec
    running: RunningSandbox

    @property
    def agent(self) -> AgentClient:
        return AgentClient(
            self.running.agent,
            host_secret=self.spec.host_secret,
            access_token=self.spec.access_token,
        )

    async def sh(self, command: str) -> str:
        done = await self.agent.run(command, user="root", timeout=20)
        assert done.exit_code == 0, done.output
        return done.output.strip()

    async def start_counter(self) -> None:
        """A process whose count shows whether memory survived."""
        await self.agent.spawn(COUNTER, user="root")
        await self.sh("until [ -s /root/count ]; do sleep 0.01; done")

    async def count(self) -> tuple[int, int]:
        """The counter's pid and count."""
        pid, count = (await self.sh("cat /root/count")).split()
        return int(pid), int(count)


COUNTER = (
    "i=0; while :; do i=$((i+1)); echo $$ $i > /root/.c && mv /root/.c /root/count;"
    " sleep 0.01; done"
)


@dataclass
class Host:
    """One host over several lives of its server. ``paused`` is what a catalog would know."""

    settings: Settings
    agent: Path
    node: LocalNode

    @classmethod
    async def of(cls, root: Path, agent: Path, *, hot_memory_mb: int = 4096) -> Host:
        settings = settings_in(root, hot_memory_mb=hot_memory_mb)
        host = cls(settings, agent, make_node(settings, agent))
        await host.node.start(())
        return host

    async def restart(
        self,
        *specs: SandboxSpec,
        paused: tuple[SandboxSpec, ...] = (),
        snapshots: Collection[str] = (),
    ) -> Adoption:
        """A new server process; the old one is gone without a word or was closed."""
        await self.node.close()
        return await self.begin(*specs, paused=paused, snapshots=snapshots)

    async def begin(
        self,
        *specs: SandboxSpec,
        paused: tuple[SandboxSpec, ...] = (),
        snapshots: Collection[str] = (),
    ) -> Adoption:
        self.node = make_node(self.settings, self.agent)
        requests = [
            AdoptRequest(
                spec.sandbox_id,
                spec.template,
                spec.host_secret,
                spec.access_token,
                resources=spec.resources,
                paused=spec in paused,
            )
            for spec in (*specs, *paused)
        ]
        return await self.node.start(tuple(requests), snapshots=frozenset(snapshots))

    async def create(self, **changes: object) -> Guest:
        spec = make_spec(**changes)
        return Guest(spec, await self.node.create(spec))

    async def warm(self, machines: int = 1, template: str = TEMPLATE) -> None:
        """Return when so many machines wait, after as many creates found none."""
        for _ in range(machines):
            assert await self.node.claim(template, SMALL) is None
        await until(lambda: self.waiting() == machines, timeout=60)

    async def claim(self, template: str = TEMPLATE, **changes: object) -> Guest:
        """A sandbox that is made of a machine that waits."""
        claimed = await self.node.claim(template, SMALL)
        assert claimed is not None
        return await self.create(template=template, sandbox_id=claimed, **changes)

    def waiting(self) -> int:
        return self.node._makers.pools.report().machines

    async def resume(self, guest: Guest, snapshot: str | None, **changes: object) -> Guest:
        spec = replace(guest.spec, snapshot=snapshot, **changes)  # type: ignore[arg-type]
        return Guest(guest.spec, await self.node.resume(spec))

    async def disk_images(self) -> list[str]:
        engine = await self.node._engines.get("gvisor")
        return [image.name for image in await engine.disk_images()]
