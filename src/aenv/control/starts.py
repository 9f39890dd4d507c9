"""What a new sandbox starts from: a template, or a snapshot that callers name like one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aenv.control.builds.library import Library
from aenv.control.deadlines import deadline
from aenv.control.requests import CreateRequest
from aenv.control.snapshots import SnapshotRecord, Snapshots
from aenv.control.templates import Templates, template_id
from aenv.models.errors import CapabilityError, InvalidRequestError, NotFoundError
from aenv.models.sandboxes import Resources
from aenv.models.settings import Settings
from aenv.models.templates import TemplateInfo
from aenv.models.volumes import VolumeMount
from aenv.node.engine import Capabilities
from aenv.node.port import Node

INFO_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Start:
    """``template`` is the node's; ``template_id`` what the API shows. ``engine``: the only one
    that can start from the snapshot. ``counted``: whose use it is, if not the node's template's.
    """

    template: str
    template_id: str
    resources: Resources
    snapshot: str | None = None
    engine: str | None = None
    env_vars: Mapping[str, str] = field(default_factory=dict, repr=False)
    parent_sandbox: str | None = None
    parent_snapshot: str | None = None
    counted: str | None = None
    volumes: tuple[VolumeMount, ...] = ()


class Starts:
    def __init__(
        self,
        node: Node,
        templates: Templates,
        snapshots: Snapshots,
        library: Library,
        settings: Settings,
    ) -> None:
        self._node = node
        self._templates = templates
        self._snapshots = snapshots
        self._library = library
        self._settings = settings
        self._engines: dict[str, Capabilities] = {}

    async def of(self, team: str, request: CreateRequest) -> Start:
        """NotFoundError, and what :meth:`Templates.require` raises."""
        built = await self._library.find(team, request.template)
        if built is not None:
            build, image = built
            start = _from_snapshot(image, request, "template")
            return replace(start, template_id=build.template_id, counted=build.template_id)
        snapshot = await self._snapshots.find(team, request.template)
        if snapshot is not None:
            return _from_snapshot(snapshot, request)
        await self._refuse_tag(team, request.template)
        info = await self._templates.require(request.template)
        resources = _resources(request, info, self._settings)
        return Start(info.name, template_id(info.name), resources)

    async def _refuse_tag(self, team: str, reference: str) -> None:
        """A misspelt tag of a snapshot is not looked for in a registry: NotFoundError."""
        tags = await self._snapshots.other_tags(team, reference)
        if tags and not await self._templates.exists(reference):
            raise NotFoundError(
                f"there is no snapshot {reference[:255]!r}; the tags of this name: "
                f"{', '.join(tags)}; an image is fetched by: aenv pull {reference[:255]}"
            )

    async def check_pausing(self, engine: str | None) -> None:
        """CapabilityError where the engine cannot pause: the sandbox would be lost at its end."""
        name = engine or self._settings.engine
        if name not in self._engines:
            async with deadline(INFO_TIMEOUT, "asking the node what it can do"):
                info = await self._node.info()
            self._engines = {one.engine: one for one in info.capabilities}
        known = self._engines.get(name)
        if known is not None and not known.memory_snapshot:
            raise CapabilityError(
                f"autoPause, autoResume: the engine {name!r} cannot pause sandboxes; leave them out"
            )


def _from_snapshot(
    snapshot: SnapshotRecord, request: CreateRequest, noun: str = "snapshot"
) -> Start:
    """With the resources it was taken with: its memory can come back into nothing else."""
    held = snapshot.resources
    for name, asked, has in (
        ("cpuCount", request.cpu, held.cpu),
        ("memoryMB", request.memory_mb, held.memory_mb),
        ("diskSizeMB", request.disk_mb, held.disk_mb),
    ):
        if asked is not None and asked != has:
            raise InvalidRequestError(
                f"{name}: a sandbox from a {noun} that was built or taken has its own, {has:g}; "
                "leave it out"
            )
    if request.engine not in (None, snapshot.engine):
        raise InvalidRequestError(
            f"engine: the {noun} was made with {snapshot.engine!r}; leave it out"
        )
    return Start(
        template=snapshot.base,
        template_id=snapshot.template_id or snapshot.base_id,
        resources=held,
        snapshot=snapshot.id,
        engine=snapshot.engine,
        env_vars=snapshot.env_vars,
        volumes=snapshot.volumes,
        parent_sandbox=snapshot.sandbox_id if noun == "snapshot" else None,
        parent_snapshot=snapshot.id if noun == "snapshot" else None,
    )


def _resources(request: CreateRequest, info: TemplateInfo, settings: Settings) -> Resources:
    """The request's figures, else the template's own, else the server's defaults (a template
    without figures of its own carries the built-in ones).
    """
    base = info.resources if info.resources != Resources() else settings.defaults
    return Resources(
        cpu=request.cpu if request.cpu is not None else base.cpu,
        memory_mb=request.memory_mb if request.memory_mb is not None else base.memory_mb,
        disk_mb=request.disk_mb if request.disk_mb is not None else base.disk_mb,
    )
