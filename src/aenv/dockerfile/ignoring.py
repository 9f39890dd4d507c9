"""``.dockerignore``: which files of a context are not sent. The last pattern to match decides."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Rule:
    pattern: re.Pattern[str]
    keeps: bool


class Ignored:
    """Paths are relative to the context, with ``/``."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._rules = [rule for line in lines if (rule := _rule(line)) is not None]
        self._exceptions = any(rule.keeps for rule in self._rules)

    @classmethod
    def of(cls, context: Path, dockerfile: Path) -> Ignored:
        """``NAME.dockerignore`` beside the Dockerfile wins over the context's."""
        for path in (
            dockerfile.with_name(dockerfile.name + ".dockerignore"),
            context / ".dockerignore",
        ):
            if path.is_file():
                return cls(path.read_text(encoding="utf-8-sig").splitlines())
        return cls(())

    def __call__(self, path: str) -> bool:
        """Whether it is left out: by a pattern that matches it or a folder above it."""
        left_out = False
        parts = path.split("/")
        above = ["/".join(parts[: n + 1]) for n in range(len(parts))]
        for rule in self._rules:
            if rule.keeps is left_out and any(rule.pattern.fullmatch(one) for one in above):
                left_out = not rule.keeps
        return left_out

    def prunes(self, folder: str) -> bool:
        """Whether nothing below an ignored folder can be wanted."""
        return not self._exceptions and self(folder)


def _rule(line: str) -> Rule | None:
    if line.startswith("#") or not (text := line.strip()):
        return None
    keeps = text.startswith("!")
    text = text[1:].strip() if keeps else text
    parts = [part for part in text.split("/") if part not in ("", ".")]
    if not parts:
        return None
    return Rule(re.compile(_translated(parts)), keeps)


def matcher(pattern: str) -> re.Pattern[str]:
    """What a COPY's pattern matches, whole paths."""
    return re.compile(_translated([p for p in pattern.split("/") if p not in ("", ".")]))


def _translated(parts: list[str]) -> str:
    found: list[str] = []
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if part == "**":
            found.append(".*" if last else "(?:[^/]+/)*")
        else:
            found.append(_segment(part) + ("" if last else "/"))
    return "".join(found)


def _segment(part: str) -> str:
    found, at = [], 0
    while at < len(part):
        letter = part[at]
        at += 1
        if letter == "*":
            found.append("[^/]*")
        elif letter == "?":
            found.append("[^/]")
        elif letter == "\\" and at < len(part):
            found.append(re.escape(part[at]))
            at += 1
        elif letter == "[" and (end := part.find("]", at + 1)) > 0:
            inner = part[at:end].replace("\\", "\\\\")
            found.append(f"[{'^' + inner[1:] if inner[:1] in '^!' else inner}]")
            at = end + 1
        else:
            found.append(re.escape(letter))
    return "".join(found)
