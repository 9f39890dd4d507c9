"""As whom, where and with which variables a step runs: what the steps before it have said."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aenv.control.builds.plans import Step, StepType
from aenv.models.variables import expand

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Context:
    """``workdir`` "": the user's home."""

    user: str = "user"
    workdir: str = ""
    env: Mapping[str, str] = field(default_factory=dict)

    def after(self, step: Step) -> Context:
        """What a step leaves behind. InvalidRequestError for variables that make no sense."""
        if step.type is StepType.ENV:
            found = self
            for name, value in zip(step.args[::2], step.args[1::2], strict=True):
                known = self if step.docker else found  # an ENV of Dockerfiles is set at once
                found = replace(found, env={**found.env, name: known._expanded(value, step)})
            return found
        if step.type is StepType.WORKDIR:
            return replace(self, workdir=self._path(self._expanded(step.args[0], step)))
        if step.type is StepType.USER:
            return replace(self, user=self._expanded(step.args[0], step))
        return self

    def expanded(self, step: Step) -> Step:
        """A Dockerfile's COPY with its variables replaced; other steps are what they are."""
        if step.docker is None or step.type is not StepType.COPY:
            return step
        return replace(step, args=tuple(self._expanded(word, step) for word in step.args))

    def environment(self, step: Step) -> dict[str, str]:
        """The variables that a step runs with."""
        return {**(step.docker.variables if step.docker else {}), **self.env}

    def _expanded(self, text: str, step: Step) -> str:
        if step.docker is None:
            return expand(text, self._variables())
        known = {**step.docker.variables, **self._variables()}
        return expand(text, known, escape=step.docker.escape)

    def _variables(self) -> dict[str, str]:
        """Also those that every process has."""
        name = self.user.partition(":")[0]
        home = "/root" if name in ("root", "0") else f"/home/{name}"
        return {"PATH": _PATH, "HOME": home, "USER": name, "LOGNAME": name, **self.env}

    def _path(self, path: str) -> str:
        """Absolute; below the present one if it was set, else below the root."""
        return posixpath.normpath(posixpath.join(self.workdir or "/", path))
