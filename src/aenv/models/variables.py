"""Variables in text, as Dockerfiles write them: ``$NAME``, ``${NAME}``, ``${NAME:-default}``,
``${NAME:+other}``, ``${NAME:?message}``, each also without the colon. An escaped ``$`` is one.
"""

from __future__ import annotations

from collections.abc import Mapping

from aenv.models.errors import InvalidRequestError

_DEEPEST = 32


def expand(text: str, variables: Mapping[str, str], *, escape: str = "\\") -> str:
    """``text`` with its variables; unknown ones are empty. InvalidRequestError."""
    expanded, rest = _expand(text, 0, variables, escape, closing=False, depth=0)
    assert rest == len(text)
    return expanded


def _expand(
    text: str, at: int, variables: Mapping[str, str], escape: str, *, closing: bool, depth: int
) -> tuple[str, int]:
    """From ``at`` to the end, or to the brace that closes."""
    if depth > _DEEPEST:
        raise InvalidRequestError(f"{text[:64]!r}: variables are nested too deep")
    found: list[str] = []
    while at < len(text):
        letter = text[at]
        if closing and letter == "}":
            return "".join(found), at
        if letter == escape and text[at + 1 : at + 2] == "$":
            found.append("$")
            at += 2
        elif letter == "$":
            value, at = _variable(text, at + 1, variables, escape, depth)
            found.append(value)
        else:
            found.append(letter)
            at += 1
    if closing:
        raise InvalidRequestError(f"{text[:64]!r}: a brace is not closed")
    return "".join(found), at


def _variable(
    text: str, at: int, variables: Mapping[str, str], escape: str, depth: int
) -> tuple[str, int]:
    """The value of what stands behind the ``$`` before ``at``."""
    if text[at : at + 1] != "{":
        name, at = _name(text, at)
        return (variables.get(name, ""), at) if name else ("$", at)
    name, at = _name(text, at + 1)
    if not name:
        raise InvalidRequestError(f"{text[:64]!r}: a variable without a name")
    value = variables.get(name)
    if text[at : at + 1] == "}":
        return value or "", at + 1
    filled = text[at : at + 1] == ":"
    at += filled
    kind = text[at : at + 1]
    if kind not in ("-", "+", "?") or not kind:
        raise InvalidRequestError(f"{text[:64]!r}: ${{{name}…}} cannot be understood")
    word, at = _expand(text, at + 1, variables, escape, closing=True, depth=depth + 1)
    there = bool(value) if filled else value is not None
    if kind == "+":
        return (word if there else ""), at + 1
    if not there and kind == "?":
        raise InvalidRequestError(f"{name}: {word or 'it is not set'}")
    return (value or "" if there else word), at + 1


def _name(text: str, at: int) -> tuple[str, int]:
    end = at
    while end < len(text) and (text[end] == "_" or (text[end].isascii() and text[end].isalnum())):
        if end == at and text[end].isdigit():
            break
        end += 1
    return text[at:end], end
