"""What to start in a sandbox, and how it goes over the wire."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from aenv.models.errors import InvalidRequestError

Command = str | Sequence[str]
SignalName = Literal["KILL", "TERM"]
LOGIN_SHELL = ("/bin/bash", "-i", "-l")


@dataclass(frozen=True, slots=True)
class Launch:
    """A ``str`` command goes to ``bash -l -c``, a sequence runs as it is.

    ``timeout`` in seconds is enforced by the agent, which kills the process then. ``size``: on a
    terminal of so many columns and rows. ``quiet``: its stdout, which is data, stays out of the
    sandbox's log.
    """

    command: Command
    user: str | None = None
    cwd: str | None = None
    env: Mapping[str, str] | None = None
    timeout: float | None = None
    stdin: bool = False
    size: tuple[int, int] | None = None
    tag: str | None = None
    quiet: bool = False

    def message(self) -> dict[str, Any]:
        """The body of ``process.Process/Start``."""
        cmd, *args = self.argv()
        process: dict[str, Any] = {"cmd": cmd, "args": args, "envs": dict(self.env or {})}
        if self.cwd:
            process["cwd"] = self.cwd
        message: dict[str, Any] = {"process": process, "stdin": self.stdin}
        if self.tag:
            message["tag"] = self.tag
        if self.size:
            message["pty"] = {"size": {"cols": self.size[0], "rows": self.size[1]}}
        return message

    def argv(self) -> list[str]:
        if isinstance(self.command, str):
            return ["/bin/bash", "-l", "-c", self.command]
        if not self.command:
            raise InvalidRequestError("the command is empty")
        return list(self.command)

    def __str__(self) -> str:
        words = self.command if isinstance(self.command, str) else shlex.join(self.command)
        return words if len(words) <= 80 else words[:77] + "…"
