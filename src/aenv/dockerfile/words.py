"""Words of ENV, ARG, LABEL, COPY and others: quotes are removed, variables stay.

What comes out is for :func:`aenv.models.variables.expand` with the file's escape letter: a ``$``
that was quoted or escaped is escaped in it.
"""

from __future__ import annotations

from collections.abc import Iterator

from aenv.dockerfile.faults import DockerfileError


def split(text: str, escape: str, *, file: str, line: int) -> list[str]:
    """At blanks outside of quotes. DockerfileError when a quote is not closed."""
    found: list[str] = []
    word: list[str] | None = None
    for piece in _pieces(text, escape, file, line):
        if piece is None:
            if word is not None:
                found.append("".join(word))
            word = None
        else:
            word = [*(word or []), piece]
    if word is not None:
        found.append("".join(word))
    return found


def unquoted(text: str, escape: str, *, file: str, line: int) -> str:
    """All of it as one word."""
    return "".join(" " if p is None else p for p in _pieces(text, escape, file, line))


def pairs(text: str, escape: str, *, file: str, line: int) -> list[tuple[str, str]]:
    """``A=1 B="x y"``, or the old ``A all the rest``."""
    first = text.split(None, 1)
    if len(first) == 2 and "=" not in first[0]:
        return [(first[0], unquoted(first[1], escape, file=file, line=line))]
    found = []
    for word in split(text, escape, file=file, line=line):
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise DockerfileError(file, line, f"{word[:64]!r} is not NAME=VALUE")
        found.append((name, value))
    return found


def _pieces(text: str, escape: str, file: str, line: int) -> Iterator[str | None]:
    """Letters and runs of them; None for a blank outside of quotes."""
    at, quote, depth = 0, "", 0
    while at < len(text):
        letter, after = text[at], text[at + 1 : at + 2]
        at += 1
        if quote == "'":
            if letter == "'":
                quote = ""
            else:
                yield escape + "$" if letter == "$" else letter
        elif letter == escape and after:
            at += 1
            yield from _escaped(after, escape, quote)
        elif letter == quote:
            quote = ""
            yield ""
        elif letter in "'\"" and not quote and not depth:
            quote = letter
            yield ""
        elif letter in " \t\n" and not quote and not depth:
            yield None
        else:
            opens = text[at - 1 : at + 1] == "${"
            depth += opens
            depth -= letter == "}" and depth > 0
            yield letter
    if quote:
        raise DockerfileError(file, line, f"the quote {quote} is not closed")


def _escaped(letter: str, escape: str, quote: str) -> Iterator[str]:
    if letter == "$":
        yield escape + "$"
    elif quote == '"' and letter not in ('"', escape):
        yield escape + letter
    else:
        yield letter
