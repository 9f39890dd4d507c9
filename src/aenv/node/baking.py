"""Making memory images of templates: a sandbox of nobody is booted, captured and ended."""

from __future__ import annotations

import logging

from aenv.models.ids import new_sandbox_id, new_token
from aenv.models.sandboxes import NetworkPolicy, Resources
from aenv.node.bakes import BakeKey, Bakes, Use
from aenv.node.captures import Capturer, Order
from aenv.node.engine import Engine
from aenv.node.engines.tasks import finish
from aenv.node.launches import Launcher
from aenv.node.port import SandboxSpec

logger = logging.getLogger(__name__)


class Baker:
    """``capturer`` writes into the store of ``bakes``."""

    def __init__(self, bakes: Bakes, launcher: Launcher, capturer: Capturer) -> None:
        self._bakes = bakes
        self._launcher = launcher
        self._capturer = capturer

    async def bake(self, spec: SandboxSpec, engine: Engine) -> None:
        """Make the image that creates like ``spec`` start from. What ``spec`` says of identity is
        only this sandbox's. Raises what a create or a capture does; nothing is left then.
        """
        resident = await self._launcher.launch(spec, use=Use.NEVER)
        try:
            name = await self._bakes.name(BakeKey.of(spec, engine, resident.template))
            await self._bakes.make_room()
            order = Order("bake", name, memory=True, parent=spec.snapshot)
            await self._capturer.capture(resident, engine, order, stay_frozen=True)
        finally:
            await finish(self._launcher.dismiss(resident))
        logger.info("baked the memory of template %s as %s", spec.template, name)


def nobody(
    template: str, resources: Resources, *, snapshot: str | None = None, engine: str | None = None
) -> SandboxSpec:
    """A sandbox without an owner: secrets that nobody knows, and the network of any sandbox."""
    return SandboxSpec(
        sandbox_id=new_sandbox_id(),
        template=template,
        resources=resources,
        network=NetworkPolicy(),
        access_token=new_token(),
        host_secret=new_token(),
        engine=engine,
        snapshot=snapshot,
    )


class _Unpinned:
    """Memory images do not keep their template's image: they go with it."""

    async def pin(self, name: str, digest: str, layers: object, holder: object) -> None:
        return


UNPINNED = _Unpinned()
