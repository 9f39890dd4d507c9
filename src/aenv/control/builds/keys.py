"""What a cached step is known by: everything that made the disk after it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aenv.control.builds.contexts import Context
from aenv.control.builds.plans import DockerStep, Step

_FORMAT = 3
"""Counts up when steps come to do something else."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A step with where it runs, and the key of the disk after it. ``number`` from 1."""

    number: int
    step: Step
    before: Context
    after: Context
    key: str
    cacheable: bool


def root(team: str, *of: str | None) -> str:
    """The key of what a build starts from. Teams share no disks: what a COPY's files are called is
    for its caller to say.
    """
    return _hashed([_FORMAT, team, *of])


def chain(
    start: str,
    context: Context,
    steps: Sequence[Step],
    *,
    force: bool,
    stages_before: Mapping[str, str] | None = None,
) -> list[Stage]:
    """The steps with their contexts and keys. After a step that is forced none is cached.
    ``stages_before``: the keys of stages whose files a step may copy.
    """
    stages: list[Stage] = []
    key = start
    for number, step in enumerate(steps, 1):
        force = force or step.force
        after = context.after(step)
        where = [after.user, after.workdir, sorted(after.env.items())]
        step = context.expanded(step)
        files = step.files_hash
        if step.docker is not None and step.docker.stage is not None:
            files = (stages_before or {})[step.docker.stage]
        key = _hashed([key, step.type, step.args, files, where, _docker(step.docker)])
        stages.append(Stage(number, step, context, after, key, not force))
        context = after
    return stages


def _docker(step: DockerStep | None) -> list[object] | None:
    if step is None:
        return None
    variables = sorted(step.variables.items()) if step.argv else []  # others are expanded already
    return [step.argv, variables, step.caches, step.escape]


def _hashed(content: Sequence[object]) -> str:
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()
