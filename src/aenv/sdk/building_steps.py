"""Steps of a template that a program writes, as a Dockerfile's instructions are read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from aenv.dockerfile.contexts import Context
from aenv.dockerfile.ignoring import Ignored
from aenv.dockerfile.stages import DEFAULT_SHELL, BuildStep, Files, Recipe, Stage
from aenv.models.errors import InvalidRequestError
from aenv.sdk.building import DockerfileBuild
from aenv.sdk.launches import Command

ESCAPE = "\\"


def of_image(image: str, context: Path) -> DockerfileBuild:
    stage = Stage("stage-0", image, 0)
    return DockerfileBuild(
        Recipe("", ESCAPE, (stage,)), Context(context, Ignored.of(context, context / "Dockerfile"))
    )


def with_step(work: DockerfileBuild, step: BuildStep) -> DockerfileBuild:
    """Another build, with one step more at its end."""
    *before, last = work.recipe.stages
    longer = replace(last, steps=[*last.steps, step])
    return DockerfileBuild(replace(work.recipe, stages=(*before, longer)), work.context)


def run(command: Command, user: str | None) -> BuildStep:
    argv = (*DEFAULT_SHELL, command) if isinstance(command, str) else tuple(command)
    title = command if isinstance(command, str) else shlex.join(command)
    if not title.strip():
        raise InvalidRequestError("the command is empty")
    return BuildStep("RUN", (title, user) if user else (title,), 0, argv=argv)


def copy(source: str, target: str, owner: str | None, mode: int | None) -> BuildStep:
    parts = [part for part in source.split("/") if part not in ("", ".")]
    if source.startswith("/") or ".." in parts:
        raise InvalidRequestError(f"{source!r} leads out of the context")
    path = "/".join(parts) or "."
    octal = "" if mode is None else f"{mode:o}".zfill(4)
    args = (literal(path), literal(target), literal(owner or ""), octal)
    return BuildStep("COPY", args, 0, Files(path))


def env(variables: Mapping[str, str]) -> BuildStep:
    words = [part for name, value in variables.items() for part in (name, literal(value))]
    return BuildStep("ENV", tuple(words), 0)


def workdir(path: str) -> BuildStep:
    return BuildStep("WORKDIR", (literal(path),), 0)


def user(name: str) -> BuildStep:
    return BuildStep("USER", (literal(name),), 0)


def literal(text: str) -> str:
    """As the server takes it when nothing in it is to be replaced."""
    return text.replace("$", ESCAPE + "$")
