"""What the template routes answer (contract e2b §1.3)."""

from __future__ import annotations

from aenv.control.builds.library import BuiltTemplate
from aenv.control.system import System
from aenv.control.templates import Template
from aenv.models.sandboxes import ENVD_VERSION, Resources
from aenv.server.replies import sizes
from aenv.server.wire import Reply, wire_seconds, wire_time


class TemplateReply(Reply):
    template_id: str
    build_id: str
    cpu_count: float | int
    memory_mb: int
    disk_size_mb: int
    public: bool
    aliases: list[str]
    names: list[str]
    created_at: str
    updated_at: str
    created_by: None = None
    last_spawned_at: str | None
    spawn_count: int
    build_count: int
    envd_version: str
    build_status: str
    reproducible: bool
    digest: str | None
    size_bytes: int

    @classmethod
    def of(cls, template: Template, system: System) -> TemplateReply:
        built = wire_seconds(template.info.built_at if template.info else 0)
        return cls(
            template_id=template.id,
            build_id=template.build_id,
            **sizes(_resources(template, system)),
            public=True,
            aliases=[template.name],
            names=[template.name],
            created_at=built,
            updated_at=built,
            last_spawned_at=_last_use(template),
            spawn_count=template.uses.count,
            build_count=1,
            envd_version=ENVD_VERSION,
            build_status=template.status.value,
            reproducible=template.info is None or template.info.reproducible,
            digest=template.info.digest if template.info else None,
            size_bytes=template.info.size_bytes if template.info else 0,
        )

    @classmethod
    def of_built(cls, template: BuiltTemplate) -> TemplateReply:
        """What a caller has built; it has a build."""
        newest = template.newest
        assert newest is not None
        record = template.record
        return cls(
            template_id=record.id,
            build_id=newest.id,
            **sizes(newest.resources),
            public=record.public,
            aliases=[record.name],
            names=[record.name],
            created_at=wire_time(record.created_at),
            updated_at=wire_time(record.updated_at),
            last_spawned_at=_moment(template.uses.last_used_at),
            spawn_count=template.uses.count,
            build_count=len(template.builds),
            envd_version=ENVD_VERSION,
            build_status=newest.status.value,
            reproducible=False,
            digest=None,
            size_bytes=template.bytes,
        )


class Build(Reply):
    """``error``, ours: the step that failed and why."""

    build_id: str
    status: str
    created_at: str
    updated_at: str
    finished_at: str | None
    cpu_count: float | int
    memory_mb: int
    disk_size_mb: int
    envd_version: str
    error: str | None = None


class TemplateWithBuilds(Reply):
    template_id: str
    public: bool
    aliases: list[str]
    names: list[str]
    created_at: str
    updated_at: str
    last_spawned_at: str | None
    spawn_count: int
    builds: list[Build]

    @classmethod
    def of(cls, template: Template, system: System) -> TemplateWithBuilds:
        built = wire_seconds(template.info.built_at if template.info else 0)
        build = Build(
            build_id=template.build_id,
            status=template.status.value,
            created_at=built,
            updated_at=built,
            finished_at=built if template.info else None,
            **sizes(_resources(template, system)),
            envd_version=ENVD_VERSION,
        )
        return cls(
            template_id=template.id,
            public=True,
            aliases=[template.name],
            names=[template.name],
            created_at=built,
            updated_at=built,
            last_spawned_at=_last_use(template),
            spawn_count=template.uses.count,
            builds=[build],
        )

    @classmethod
    def of_built(cls, template: BuiltTemplate) -> TemplateWithBuilds:
        record = template.record
        return cls(
            template_id=record.id,
            public=record.public,
            aliases=[record.name],
            names=[record.name],
            created_at=wire_time(record.created_at),
            updated_at=wire_time(record.updated_at),
            last_spawned_at=_moment(template.uses.last_used_at),
            spawn_count=template.uses.count,
            builds=[
                Build(
                    build_id=build.id,
                    status=build.status.value,
                    created_at=wire_time(build.created_at),
                    updated_at=wire_time(build.finished_at or build.created_at),
                    finished_at=_moment(build.finished_at),
                    **sizes(build.resources),
                    envd_version=ENVD_VERSION,
                    error=build.failure,
                )
                for build in template.builds
            ],
        )


class Alias(Reply):
    template_id: str
    public: bool


class PartProgress(Reply):
    """How far a layer is, in bytes."""

    name: str
    state: str
    done: int
    total: int


class BuildProgress(Reply):
    """How far a template or an image is; ours."""

    name: str
    status: str
    fraction: float
    step: str
    error: str | None
    parts: list[PartProgress]


def _resources(template: Template, system: System) -> Resources:
    return template.info.resources if template.info else system.settings.defaults


def _last_use(template: Template) -> str | None:
    return _moment(template.uses.last_used_at)


def _moment(time: int | None) -> str | None:
    return None if time is None else wire_time(time)
