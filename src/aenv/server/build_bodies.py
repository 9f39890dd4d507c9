"""What the routes of builds and tags accept (contract e2b §1.3)."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

from pydantic import Field

from aenv.control.builds import logins
from aenv.control.builds.logins import Login
from aenv.control.builds.plans import (
    DockerPlan,
    DockerStage,
    DockerStep,
    Plan,
    Step,
    StepType,
)
from aenv.control.builds.service import NewBuild
from aenv.models.errors import InvalidRequestError
from aenv.models.registries import RegistryLogin
from aenv.models.sandboxes import Resources
from aenv.models.templates import ImageFacts
from aenv.server.wire import Body, StrictBody

Word = Annotated[str, Field(max_length=256)]


class NewTemplate(Body):
    """``alias`` is what older clients call ``name``."""

    name: Annotated[str, Field(max_length=255)] | None = None
    alias: Annotated[str, Field(max_length=255)] | None = None
    tags: Annotated[list[Word], Field(max_length=100)] | None = None
    cpu_count: Annotated[float, Field(gt=0, le=1024, strict=False)] | None = None
    memory_mb: Annotated[int, Field(ge=64, le=16 * 2**20)] | None = None
    min_free_disk_mb: Annotated[int, Field(ge=0, le=2**30)] | None = None

    def request(self, defaults: Resources) -> NewBuild:
        name = self.name or self.alias
        if not name:
            raise InvalidRequestError("name: a template needs one")
        resources = replace(
            defaults,
            cpu=self.cpu_count if self.cpu_count is not None else defaults.cpu,
            memory_mb=self.memory_mb if self.memory_mb is not None else defaults.memory_mb,
        )
        return NewBuild(name, resources, tuple(self.tags or ()))


class DockerStepBody(StrictBody):
    argv: list[str] = Field(default_factory=list)
    variables: dict[str, str] = Field(default_factory=dict)
    caches: Annotated[list[str], Field(max_length=32)] = Field(default_factory=list)
    stage: Annotated[str, Field(max_length=128)] | None = None
    escape: Annotated[str, Field(min_length=1, max_length=1)] = "\\"

    def step(self) -> DockerStep:
        return DockerStep(
            tuple(self.argv), self.variables, tuple(self.caches), self.stage, self.escape
        )


class StepBody(Body):
    """``docker`` is ours: what a Dockerfile's instruction says beyond E2B's step."""

    type: Annotated[str, Field(max_length=32)]
    args: Annotated[list[str], Field(max_length=10_000)] = Field(default_factory=list)
    files_hash: Annotated[str, Field(max_length=128)] | None = None
    force: bool | None = None
    docker: DockerStepBody | None = None

    def step(self) -> Step:
        kind = self.type.upper()
        if kind not in StepType.__members__:
            known = ", ".join(StepType.__members__)
            raise InvalidRequestError(f"steps: {self.type[:32]!r} is none of {known}")
        docker = self.docker.step() if self.docker else None
        return Step(
            StepType(kind), tuple(self.args), self.files_hash or None, bool(self.force), docker
        )


class DockerStageBody(StrictBody):
    name: Annotated[str, Field(min_length=1, max_length=128)]
    origin: Annotated[str, Field(min_length=1, max_length=512)]
    steps: Annotated[list[StepBody], Field(max_length=1000)] = Field(default_factory=list)

    def stage(self) -> DockerStage:
        return DockerStage(self.name, self.origin, tuple(one.step() for one in self.steps))


class DockerPlanBody(StrictBody):
    """A Dockerfile's last stage starts from ``origin``; ``stages`` are those before it."""

    origin: Annotated[str, Field(min_length=1, max_length=512)]
    stages: Annotated[list[DockerStageBody], Field(max_length=64)] = Field(default_factory=list)
    entrypoint: list[str] = Field(default_factory=list)
    cmd: list[str] = Field(default_factory=list)
    ports: list[str] = Field(default_factory=list)

    def plan(self) -> DockerPlan:
        said = ImageFacts(
            entrypoint=tuple(self.entrypoint), cmd=tuple(self.cmd), ports=tuple(self.ports)
        )
        return DockerPlan(self.origin, tuple(one.stage() for one in self.stages), said)


class RegistryBody(Body):
    """By ``type``: ``registry``, ``aws`` or ``gcp``."""

    type: Literal["registry", "aws", "gcp"]
    username: str | None = Field(None, repr=False)
    password: str | None = Field(None, repr=False)
    aws_access_key_id: str | None = Field(None, alias="awsAccessKeyId", repr=False)
    aws_secret_access_key: str | None = Field(None, repr=False)
    aws_region: str | None = None
    service_account_json: str | None = Field(None, repr=False)


def _login(given: RegistryBody) -> Login:
    """InvalidRequestError for what is missing."""
    if given.type == "registry" and given.username and given.password:
        return RegistryLogin(given.username, given.password)
    keys = (given.aws_access_key_id, given.aws_secret_access_key, given.aws_region)
    if given.type == "aws" and keys[0] and keys[1] and keys[2]:
        return logins.amazon(keys[0], keys[1], keys[2])
    if given.type == "gcp" and given.service_account_json:
        return logins.google(given.service_account_json)
    raise InvalidRequestError(
        f"fromImageRegistry: what a login of type {given.type} needs is missing"
    )


class StartBuild(Body):
    """Ours are ``hostRegistries``: steps reach package registries as the host does; ``startImage``:
    the start command is the image's ENTRYPOINT and CMD; ``docker``: a Dockerfile, of whose last
    stage ``steps`` are.
    """

    from_image: Annotated[str, Field(max_length=512)] | None = None
    from_template: Annotated[str, Field(max_length=255)] | None = None
    from_image_registry: RegistryBody | None = Field(None, repr=False)
    force: bool | None = None
    steps: Annotated[list[StepBody], Field(max_length=1000)] = Field(default_factory=list)
    start_cmd: str | None = None
    ready_cmd: str | None = None
    host_registries: bool | None = None
    start_image: bool | None = None
    docker: DockerPlanBody | None = None

    def plan(self) -> Plan:
        """InvalidRequestError for what cannot be built."""
        return Plan(
            steps=tuple(step.step() for step in self.steps),
            image=self.from_image or None,
            template=self.from_template or None,
            force=bool(self.force),
            start_cmd=self.start_cmd or None,
            ready_cmd=self.ready_cmd or None,
            host_registries=bool(self.host_registries),
            start_image=bool(self.start_image),
            docker=self.docker.plan() if self.docker else None,
            login=_login(self.from_image_registry) if self.from_image_registry else None,
        )


class TemplateUpdate(Body):
    public: bool | None = None


class AssignTags(Body):
    target: Annotated[str, Field(max_length=255)]
    tags: Annotated[list[Word], Field(max_length=100)]


class RemoveTags(Body):
    name: Annotated[str, Field(max_length=255)]
    tags: Annotated[list[Word], Field(max_length=100)]


Level = Literal["debug", "info", "warn", "error"]
