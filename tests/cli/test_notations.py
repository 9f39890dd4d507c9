"""``--help`` in the notation that everybody knows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer

import aenv.cli.main  # noqa: F401  registers the commands
from aenv.cli.apps import app


def _commands(command: Any, parent: Any = None) -> Iterator[Any]:
    context = command.context_class(command, info_name=command.name, parent=parent)
    if hasattr(command, "commands"):
        for one in command.commands.values():
            yield from _commands(one, context)
    else:
        yield context


ALL = {context.command_path: context for context in _commands(typer.main.get_command(app))}


@pytest.mark.parametrize("path", sorted(ALL))
def test_no_help_shows_types_or_braces(path: str) -> None:
    text = ALL[path].get_help()
    assert not re.search(r"[{}]|<\w+|\]\.\.\.", text), text


@pytest.mark.parametrize(
    ("path", "usage"),
    [
        ("aenv exec", "[OPTIONS] ID CMD..."),
        ("aenv start", "[OPTIONS] [TEMPLATE]"),
        ("aenv rm", "[OPTIONS] [ID...]"),
        ("aenv cp", "[OPTIONS] SRC DST"),
        ("aenv auth set", "[OPTIONS] [PROFILE]"),
        ("aenv version", "[OPTIONS]"),
    ],
)
def test_what_may_be_left_out_is_in_brackets(path: str, usage: str) -> None:
    assert ALL[path].get_help().splitlines()[0] == f"Usage: {path} {usage}"


def test_values_of_options_are_named() -> None:
    text = ALL["aenv exec"].get_help()
    for line in ("-e, --env KEY=VALUE ", "--timeout N ", "-u, --user USER "):
        assert line in text
