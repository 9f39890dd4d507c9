"""A node made of fakes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from tests.fakes.engine import FakeEngine
from tests.fakes.images import FakeImages

from aenv.models.folders import Folders
from aenv.models.ids import new_sandbox_id
from aenv.models.sandboxes import NetworkPolicy, Resources
from aenv.models.settings import Settings
from aenv.node.engine_set import EngineSet
from aenv.node.hosts import Headroom
from aenv.node.local import LocalNode, NodeParts
from aenv.node.port import AdoptRequest, SandboxSpec

GIB = 1024**3
ROOMY = Headroom(memory=64 * GIB, disk=64 * GIB)
RESOURCES = Resources()
OPEN = NetworkPolicy()


@dataclass
class Bench:
    """What a test holds: a node, and the fakes behind it."""

    folder: Path
    engine: FakeEngine = field(default_factory=FakeEngine)
    images: FakeImages = field(default_factory=FakeImages)
    headroom: Headroom = ROOMY
    inject_host_ca: bool = False
    warm_max: int = 8
    warm_memory_mb: int = 1024
    warm_idle: float = 300.0
    template_memory: bool = True

    def node(self) -> LocalNode:
        """A new node over the same host: what a restarted server makes."""
        agent = self.folder / "agent"
        agent.touch()
        settings = Settings(
            folders=Folders(*(self.folder / name for name in ("data", "cache", "config", "run"))),
            engine="fake",
            inject_host_ca=self.inject_host_ca,
            warm_max=self.warm_max,
            warm_memory_mb=self.warm_memory_mb,
            warm_idle=self.warm_idle,
            template_memory=self.template_memory,
        )
        engines = EngineSet(settings, ("fake",), lambda name, settings: self.engine)
        return LocalNode(settings, NodeParts(engines, self.images, agent, lambda: self.headroom))


def make_spec(
    *,
    sandbox_id: str | None = None,
    template: str = "base",
    resources: Resources = RESOURCES,
    network: NetworkPolicy = OPEN,
    env_vars: dict[str, str] | None = None,
    engine: str | None = None,
) -> SandboxSpec:
    return SandboxSpec(
        sandbox_id=sandbox_id or new_sandbox_id(),
        template=template,
        resources=resources,
        network=network,
        access_token="token",
        host_secret="secret",
        env_vars=env_vars or {},
        engine=engine,
    )


def adopt_request(spec: SandboxSpec) -> AdoptRequest:
    return AdoptRequest(spec.sandbox_id, spec.template, "secret", "token", engine="fake")
