"""What a build is asked to do: where it starts from, its steps, what runs at the end."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

from aenv.models.errors import InvalidRequestError

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
class Step:
    """``args`` as E2B sends them: ``COPY [src, dest, user, mode]``, ``RUN [command, user]``,
    ``ENV [name, value, …]``, ``WORKDIR [path]``, ``USER [name]``. ``force``: not from the cache.
    """

    type: StepType
    args: tuple[str, ...]
    files_hash: str | None = None
    force: bool = False

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
class Plan:
    """``image`` or ``template``: what it starts from. ``host_registries``: steps reach package
    registries as the host does.
    """

    steps: tuple[Step, ...] = ()
    image: str | None = None
    template: str | None = None
    force: bool = False
    start_cmd: str | None = None
    ready_cmd: str | None = None
    host_registries: bool = False


def check(plan: Plan) -> None:
    """InvalidRequestError naming the field."""
    if (plan.image is None) == (plan.template is None):
        raise InvalidRequestError("a build starts from fromImage or from fromTemplate, one of them")
    if len(plan.steps) > MOST_STEPS:
        raise InvalidRequestError(f"steps: more than {MOST_STEPS}")
    for number, step in enumerate(plan.steps, 1):
        _check_step(step, f"steps[{number}]")
    for name, command in (("startCmd", plan.start_cmd), ("readyCmd", plan.ready_cmd)):
        _check_word(command or "", name)


def _check_step(step: Step, name: str) -> None:
    least, most = _ARGS[step.type]
    if not least <= len(step.args) <= most:
        raise InvalidRequestError(f"{name}: {step.type} takes {least} to {most} arguments")
    for word in step.args:
        _check_word(word, name)
    if step.type is StepType.COPY:
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
