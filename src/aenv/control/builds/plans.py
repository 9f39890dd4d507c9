"""What a build is asked to do: where it starts from, its steps, what runs at the end."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from aenv.control.builds.logins import Login
from aenv.models.errors import InvalidRequestError
from aenv.models.templates import ImageFacts

MOST_STEPS = 1000
FILES_HASH = re.compile(r"[0-9a-f]{64}\Z")
_MODE = re.compile(r"[0-7]{1,5}\Z")
_LONGEST = 128 * 1024 - 1
"""The kernel's limit for one word of a command line."""


class StepType(StrEnum):
    COPY = "COPY"
    RUN = "RUN"
    ENV = "ENV"
    WORKDIR = "WORKDIR"
    USER = "USER"


_ARGS = {
    StepType.COPY: (2, 4),
    StepType.RUN: (1, 2),
    StepType.ENV: (2, 10_000),
    StepType.WORKDIR: (1, 1),
    StepType.USER: (1, 1),
}


@dataclass(frozen=True, slots=True)
class DockerStep:
    """How a Dockerfile's instruction differs from E2B's step of that name. ``argv``: the words of a
    RUN. ``variables``: build arguments, weaker than ENV. ``caches``: folders that are kept from one
    build to the next instead of in the image. ``stage``: whose files a COPY takes.
    ``escape``: what makes a ``$`` plain.
    """

    argv: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    caches: tuple[str, ...] = ()
    stage: str | None = None
    escape: str = "\\"


@dataclass(frozen=True, slots=True)
class Step:
    """``args`` as E2B sends them: ``COPY [src, dest, user, mode]``, ``RUN [command, user]``,
    ``ENV [name, value, …]``, ``WORKDIR [path]``, ``USER [name]``. ``force``: not from the cache.
    """

    type: StepType
    args: tuple[str, ...]
    files_hash: str | None = None
    force: bool = False
    docker: DockerStep | None = None

    @property
    def makes_layer(self) -> bool:
        """Whether it changes the disk."""
        return self.type in (StepType.COPY, StepType.RUN, StepType.WORKDIR)

    @property
    def title(self) -> str:
        words = self.args[: 2 if self.type is StepType.COPY else 1]
        if self.type is StepType.ENV:
            words = tuple(f"{n}=…" for n in self.args[::2])
        text = f"{self.type} {' '.join(words)}"
        return text if len(text) <= 200 else text[:199] + "…"


@dataclass(frozen=True, slots=True)
class DockerStage:
    """A stage before the last. ``origin``: an image, a template, or a stage before it."""

    name: str
    origin: str
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class DockerPlan:
    """What only Dockerfiles say: ``stages`` in order, what the last starts from, and ``image``:
    what the template's image says of itself.
    """

    origin: str
    stages: tuple[DockerStage, ...] = ()
    image: ImageFacts = field(default_factory=ImageFacts)


@dataclass(frozen=True, slots=True)
class Plan:
    """``image``, ``template`` or ``docker.origin``: what it starts from. ``host_registries``: steps
    reach package registries as the host does. ``start_image``: the start command is what the image
    says (ENTRYPOINT and CMD). ``login``: to the registry of ``image``.
    """

    steps: tuple[Step, ...] = ()
    image: str | None = None
    template: str | None = None
    force: bool = False
    start_cmd: str | None = None
    ready_cmd: str | None = None
    host_registries: bool = False
    start_image: bool = False
    login: Login | None = field(default=None, repr=False)
    docker: DockerPlan | None = None


def check(plan: Plan) -> None:
    """InvalidRequestError naming the field."""
    if sum(one is not None for one in (plan.image, plan.template, plan.docker)) != 1:
        raise InvalidRequestError("a build starts from fromImage or from fromTemplate, one of them")
    stages = plan.docker.stages if plan.docker else ()
    if sum(len(steps) for steps in (plan.steps, *(one.steps for one in stages))) > MOST_STEPS:
        raise InvalidRequestError(f"steps: more than {MOST_STEPS}")
    known: set[str] = set()
    for stage in stages:
        _check_steps(stage.steps, known, f"stages[{stage.name[:64]}].")
        known.add(stage.name)
    _check_steps(plan.steps, known, "")
    for name, command in (("startCmd", plan.start_cmd), ("readyCmd", plan.ready_cmd)):
        _check_word(command or "", name)


def _check_steps(steps: tuple[Step, ...], stages: set[str], name: str) -> None:
    for number, step in enumerate(steps, 1):
        _check_step(step, f"{name}steps[{number}]")
        taken = step.docker.stage if step.docker else None
        if taken is not None and taken not in stages:
            raise InvalidRequestError(f"{name}steps[{number}]: there is no stage {taken[:64]!r}")


def _check_step(step: Step, name: str) -> None:
    least, most = _ARGS[step.type]
    if not least <= len(step.args) <= most:
        raise InvalidRequestError(f"{name}: {step.type} takes {least} to {most} arguments")
    for word in step.args:
        _check_word(word, name)
    for word in step.docker.argv if step.docker else ():
        _check_word(word, name)
    if step.type is StepType.COPY and not (step.docker and step.docker.stage):
        if step.files_hash is None or not FILES_HASH.match(step.files_hash):
            raise InvalidRequestError(f"{name}.filesHash: COPY needs a SHA-256 in hex digits")
        if len(step.args) > 3 and step.args[3] and not _MODE.match(step.args[3]):
            raise InvalidRequestError(f"{name}: mode {step.args[3][:16]!r} is not octal")
    if step.type is StepType.ENV:
        if len(step.args) % 2:
            raise InvalidRequestError(f"{name}: ENV takes names and values in pairs")
        for variable in step.args[::2]:
            if not variable or "=" in variable:
                raise InvalidRequestError(f"{name}: {variable[:64]!r} is no variable's name")
    elif step.type is not StepType.COPY and not step.args[0].strip():
        raise InvalidRequestError(f"{name}: {step.type} of nothing")


def _check_word(word: str, name: str) -> None:
    if "\0" in word or len(word.encode()) > _LONGEST:
        raise InvalidRequestError(f"{name}: longer than 128 KiB, or it holds a NUL")
