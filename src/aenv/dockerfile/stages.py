"""From a Dockerfile to what a server builds: stages, and in them steps with their arguments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from aenv.dockerfile import words
from aenv.dockerfile.faults import DockerfileError
from aenv.dockerfile.reading import Dockerfile, Instruction
from aenv.models.errors import InvalidRequestError
from aenv.models.variables import expand

DEFAULT_SHELL = ("/bin/sh", "-c")


@dataclass(frozen=True, slots=True)
class Files:
    """What a COPY or ADD takes: ``path`` of the context (a pattern too), or ``content`` under that
    name, or what is at ``url``. ``unpack``: an archive is to be taken apart.
    """

    path: str
    content: bytes | None = None
    url: str | None = None
    checksum: str | None = None
    unpack: bool = False


@dataclass(frozen=True, slots=True)
class BuildStep:
    """As a server takes it; ``files`` are to be uploaded first. ``line``: where it stands."""

    type: str
    args: tuple[str, ...]
    line: int
    files: Files | None = None
    argv: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    caches: tuple[str, ...] = ()
    stage: str | None = None


@dataclass(slots=True)
class Stage:
    """``origin``: an image, a template, or an earlier stage."""

    name: str
    origin: str
    line: int
    steps: list[BuildStep] = field(default_factory=list)
    shell: tuple[str, ...] = DEFAULT_SHELL
    arguments: dict[str, str] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    cmd: tuple[str, ...] = ()
    ports: list[str] = field(default_factory=list)

    @property
    def known(self) -> dict[str, str]:
        """Variables, as far as they are known here: those of the image are the server's to know."""
        return {**self.arguments, **self.env}


@dataclass(frozen=True, slots=True)
class Recipe:
    """``stages`` in order, only those that the last one needs. ``notes``: what has no effect."""

    file: str
    escape: str
    stages: tuple[Stage, ...]
    notes: tuple[str, ...] = ()

    @property
    def last(self) -> Stage:
        return self.stages[-1]


class Scope:
    """What a Dockerfile's instructions are read with. ``images``: those that lend files."""

    def __init__(self, source: Dockerfile, arguments: Mapping[str, str]) -> None:
        self.file = source.file
        self.escape = source.escape
        self.given = dict(arguments)
        self.used: set[str] = set()
        self.globals: dict[str, str] = {}
        self.stages: list[Stage] = []
        self.images: list[Stage] = []
        self.notes: list[str] = []

    def fault(self, line: int, message: str) -> DockerfileError:
        return DockerfileError(self.file, line, message)

    def split(self, one: Instruction, text: str | None = None) -> list[str]:
        text = one.text if text is None else text
        return words.split(text, self.escape, file=self.file, line=one.line)

    def unquoted(self, one: Instruction) -> str:
        return words.unquoted(one.text, self.escape, file=self.file, line=one.line)

    def pairs(self, one: Instruction) -> list[tuple[str, str]]:
        return words.pairs(one.text, self.escape, file=self.file, line=one.line)

    def expand(self, one: Instruction, text: str, known: Mapping[str, str]) -> str:
        try:
            return expand(text, known, escape=self.escape)
        except InvalidRequestError as error:
            raise self.fault(one.line, error.message) from error

    def literal(self, text: str) -> str:
        """As an argument in which nothing is replaced any more."""
        return text.replace("$", self.escape + "$")

    def find(self, name: str) -> Stage | None:
        """A stage by its name or number."""
        for stage in self.stages:
            if stage.name.lower() == name.lower():
                return stage
        if name.isdecimal() and int(name) < len(self.stages):
            return self.stages[int(name)]
        return None

    def argument(self, one: Instruction, known: Mapping[str, str]) -> list[tuple[str, str | None]]:
        """The names an ARG declares, and their values: given, or the default."""
        found: list[tuple[str, str | None]] = []
        for word in self.split(one):
            name, equals, default = word.partition("=")
            self.used.add(name)
            value = self.expand(one, default, known) if equals else None
            found.append((name, self.given.get(name, value)))
        return found


def needed(stages: list[Stage]) -> tuple[Stage, ...]:
    """Those that the last one needs, itself included."""
    by_name = {stage.name: stage for stage in stages}
    wanted: set[str] = set()
    waiting = [stages[-1]]
    while waiting:
        stage = waiting.pop()
        if stage.name in wanted:
            continue
        wanted.add(stage.name)
        names = [stage.origin, *(step.stage for step in stage.steps if step.stage)]
        waiting += [by_name[name] for name in names if name in by_name]
    return tuple(stage for stage in stages if stage.name in wanted)


def begun(scope: Scope, one: Instruction) -> Stage:
    """A FROM."""
    parts = [scope.expand(one, word, scope.globals) for word in scope.split(one)]
    named = len(parts) == 3 and parts[1].lower() == "as"
    if not (len(parts) == 1 or named) or not parts[0]:
        raise scope.fault(one.line, "FROM takes an image, or an image AS a name")
    if parts[0] == "scratch":
        raise scope.fault(one.line, "FROM scratch: there is nothing to run steps in")
    below = scope.find(parts[0])
    name = parts[2].lower() if named else f"stage-{len(scope.stages)}"
    if scope.find(name) is not None:
        raise scope.fault(one.line, f"there is a stage {name!r} already")
    if below is None:
        return Stage(name, parts[0], one.line)
    return Stage(
        name,
        below.name,
        one.line,
        shell=below.shell,
        env=dict(below.env),
        entrypoint=below.entrypoint,
        cmd=below.cmd,
        ports=list(below.ports),
    )


def borrowed(scope: Scope, one: Instruction, name: str) -> str:
    """The stage that ``--from`` means; one for an image that is named."""
    found = scope.find(name) or next((s for s in scope.images if s.origin == name), None)
    if found is None:
        found = Stage(f"from {name}"[:128], name, one.line)
        scope.images.append(found)
    elif found is scope.stages[-1]:
        raise scope.fault(one.line, f"--from={name}: a stage cannot take files of itself")
    return found.name


def step(scope: Scope, stage: Stage, one: Instruction, kind: str, *args: str) -> BuildStep:
    """With the arguments in force; what an instruction expands further goes by them."""
    return BuildStep(kind, args, one.line, variables=dict(stage.arguments))


def with_files(of: BuildStep, files: Files) -> BuildStep:
    return replace(of, files=files)
