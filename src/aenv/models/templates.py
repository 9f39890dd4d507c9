"""Templates as a node knows them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Self

from aenv.models.sandboxes import Resources


class TemplateStatus(StrEnum):
    ABSENT = "absent"
    BUILDING = "building"
    READY = "ready"
    ERROR = "error"


@dataclass(frozen=True, slots=True)
class PartProgress:
    """One layer of an image on its way: bytes of it that have been received, of how many."""

    name: str
    state: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class TemplateProgress:
    """``fraction`` in 0..1; ``step`` names what runs now; ``error`` is set with status ERROR."""

    name: str
    status: TemplateStatus
    fraction: float = 0.0
    step: str = ""
    error: str | None = None
    parts: tuple[PartProgress, ...] = ()


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """What an image says of itself. ``ports`` as ``8080/tcp``; entry point and command are not run
    by themselves.
    """

    user: str = ""
    workdir: str = ""
    env: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    ports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GuestFacts:
    """What a built template says in place of the image below it. ``user`` runs commands where
    nobody is named, in ``workdir`` ("": the user's home), with ``env``. ``start_cmd`` runs in it,
    by a shell unless ``start_exec``, and it is ready when ``ready_cmd`` succeeds.
    """

    user: str = "user"
    workdir: str = ""
    env: dict[str, str] = field(default_factory=dict, repr=False)
    start_cmd: str | None = None
    ready_cmd: str | None = None
    start_exec: bool = False

    @property
    def start(self) -> str | tuple[str, ...] | None:
        """For a shell, or the words of a program."""
        return _command(self.start_cmd, self.start_exec)

    @classmethod
    def from_json(cls, content: Mapping[str, Any] | None) -> Self | None:
        return None if content is None else cls(**content)

    def over(self, info: TemplateInfo) -> TemplateInfo:
        """The template as a guest of these facts sees it."""
        return replace(
            info,
            default_user=self.user,
            workdir=self.workdir or f"/home/{self.user}",
            env=dict(self.env),
            start_cmd=self.start_cmd,
            ready_cmd=self.ready_cmd,
            start_exec=self.start_exec,
        )


@dataclass(frozen=True, slots=True)
class TemplateInfo:
    """A template that can be started. ``digest`` names its content; ``reproducible`` is False for
    ``host``.
    """

    name: str
    digest: str
    size_bytes: int
    built_at: float
    reproducible: bool = True
    default_user: str = "user"
    workdir: str = "/home/user"
    env: dict[str, str] = field(default_factory=dict)
    start_cmd: str | None = None
    ready_cmd: str | None = None
    resources: Resources = field(default_factory=Resources)
    image: ImageFacts | None = None
    start_exec: bool = False

    @property
    def start(self) -> str | tuple[str, ...] | None:
        """As that of :class:`GuestFacts`."""
        return _command(self.start_cmd, self.start_exec)


def _command(text: str | None, is_words: bool) -> str | tuple[str, ...] | None:
    return tuple(shlex.split(text)) if text and is_words else text
