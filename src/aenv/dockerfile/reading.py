"""From text to instructions: directives, comments, continued lines, here-documents."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

from aenv.dockerfile.faults import DockerfileError

_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.+?)\s*\Z")
_HEREDOC = re.compile(r"(?<![<\w])(\d*)<<(-?)\s*(?:'([^']+)'|\"([^\"]+)\"|([^\s<>'\"|&;()]+))")
_FLAG = re.compile(r"--([a-zA-Z][a-zA-Z0-9-]*)(?:=(\S*))?(?:\s+|\Z)")
_WITH_HEREDOCS = frozenset({"RUN", "COPY", "ADD"})
KNOWN = frozenset(
    (
        *("FROM", "RUN", "CMD", "LABEL", "MAINTAINER", "EXPOSE"),
        *("ENV", "ADD", "COPY", "ENTRYPOINT", "VOLUME", "USER"),
        *("WORKDIR", "ARG", "ONBUILD", "STOPSIGNAL", "HEALTHCHECK", "SHELL"),
    )
)


@dataclass(frozen=True, slots=True)
class Heredoc:
    """``expand``: its variables are replaced (its name was not quoted)."""

    name: str
    content: str
    expand: bool


@dataclass(frozen=True, slots=True)
class Instruction:
    """``text``: what stands behind the name and its flags, lines joined. ``words``: of the exec
    form, where ``text`` is a JSON array. Flags may repeat.
    """

    name: str
    text: str
    line: int
    flags: tuple[tuple[str, str], ...] = ()
    words: tuple[str, ...] | None = None
    heredocs: tuple[Heredoc, ...] = field(default=())

    def flag(self, name: str) -> str | None:
        """The last of that name."""
        return next((value for flag, value in reversed(self.flags) if flag == name), None)


@dataclass(frozen=True, slots=True)
class Dockerfile:
    file: str
    escape: str
    instructions: tuple[Instruction, ...]


def read(text: str, file: str = "Dockerfile") -> Dockerfile:
    """Raises DockerfileError."""
    lines = text.removeprefix("\ufeff").split("\n")
    escape = _escape(lines, file)
    found: list[Instruction] = []
    at = 0
    while at < len(lines):
        if _is_blank(lines[at]):
            at += 1
            continue
        first = at + 1
        joined, at = _joined(lines, at, escape)
        name, _, rest = joined.strip().partition(" ")
        name, rest = _named(name, rest, file, first)
        heredocs, at = _heredocs(name, rest, lines, at, file, first)
        found.append(_instruction(name, rest, first, heredocs, file))
    return Dockerfile(file, escape, tuple(found))


def _escape(lines: list[str], file: str) -> str:
    """Directives stand above everything else."""
    found: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        match = _DIRECTIVE.fullmatch(line.strip())
        if match is None or match[1].lower() not in ("syntax", "escape", "check"):
            break
        name = match[1].lower()
        if name in found:
            raise DockerfileError(file, number, f"the directive {name} stands there twice")
        found[name] = match[2]
        if name == "escape" and match[2] not in ("\\", "`"):
            raise DockerfileError(file, number, f"escape is \\ or `, not {match[2]!r}")
    return found.get("escape", "\\")


def _is_blank(line: str) -> bool:
    text = line.strip()
    return not text or text.startswith("#")


def _joined(lines: list[str], at: int, escape: str) -> tuple[str, int]:
    """A line with those it goes on in; comments and empty lines between them are nothing."""
    continued = re.compile(re.escape(escape) + r"[ \t]*\Z")
    parts: list[str] = []
    while at < len(lines):
        line = lines[at].rstrip("\r")
        at += 1
        if parts and _is_blank(line):
            continue
        text, ends = continued.subn("", line)
        parts.append(text)
        if not ends:
            break
    return "".join(parts), at


def _named(name: str, rest: str, file: str, line: int) -> tuple[str, str]:
    for separator in ("\t",):
        head, found, tail = name.partition(separator)
        if found:
            name, rest = head, f"{tail} {rest}"
    upper = name.upper()
    if upper not in KNOWN:
        raise DockerfileError(file, line, f"there is no instruction {name[:32]!r}")
    return upper, rest.strip()


def _heredocs(
    name: str, rest: str, lines: list[str], at: int, file: str, line: int
) -> tuple[tuple[Heredoc, ...], int]:
    found: list[Heredoc] = []
    for match in _HEREDOC.finditer(rest) if name in _WITH_HEREDOCS else ():
        quoted = match[3] or match[4]
        end = quoted or match[5]
        content: list[str] = []
        while True:
            if at >= len(lines):
                raise DockerfileError(file, line, f"the here-document {end!r} has no end")
            text = lines[at].rstrip("\r")
            at += 1
            text = text.lstrip("\t") if match[2] else text
            if text == end:
                break
            content.append(text + "\n")
        found.append(Heredoc(end, "".join(content), expand=not quoted))
    return tuple(found), at


def _instruction(
    name: str, rest: str, line: int, heredocs: tuple[Heredoc, ...], file: str
) -> Instruction:
    flags: list[tuple[str, str]] = []
    if name in ("FROM", "RUN", "COPY", "ADD", "HEALTHCHECK"):
        while match := _FLAG.match(rest):
            flags.append((match[1].lower(), match[2] if match[2] is not None else "true"))
            rest = rest[match.end() :]
    if not rest and name != "RUN":
        raise DockerfileError(file, line, f"{name} of nothing")
    return Instruction(name, rest, line, tuple(flags), _exec_form(rest), heredocs)


def _exec_form(text: str) -> tuple[str, ...] | None:
    if not text.startswith("["):
        return None
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if isinstance(found, list) and all(isinstance(word, str) for word in found):
        return tuple(found)
    return None
