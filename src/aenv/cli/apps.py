"""The command tree: how commands are registered, and the options every command understands."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

from aenv.cli import notations

F = TypeVar("F", bound=Callable[..., Any])

SERVER, SANDBOXES, FILES, TEMPLATES = "Server", "Sandboxes", "Files and ports", "Templates"
_SECTIONS = (SANDBOXES, FILES, TEMPLATES, SERVER)
_WHOLE_SENTENCE = 200
_USAGE_ERROR: type[Exception] = typer.BadParameter.__mro__[1]  # typer carries its own click
NOT_THE_COMMANDS = 125
"""As docker's: we failed, and the command did not run, or its end is not known."""
PASS_THROUGH = {"allow_interspersed_args": False, "ignore_unknown_options": False}
"""Context settings of commands whose arguments end with somebody else's command line."""

SIGNED = {"ignore_unknown_options": True}
"""Context settings of commands whose arguments may be negative: refused as values, not options."""


class ServerChoice(TypedDict):
    url: str | None
    api_key: str | None
    profile: str | None


@dataclass(slots=True)
class Common:
    """The options of every command, wherever on the command line they stand."""

    json: bool = False
    debug: bool = False
    url: str | None = None
    api_key: str | None = None
    profile: str | None = None
    failed: int = 1
    """The exit code of our own failure; of commands that pass on another's, one apart from it."""

    @property
    def server(self) -> ServerChoice:
        """Keyword arguments that name the server to the SDK."""
        return {"url": self.url, "api_key": self.api_key, "profile": self.profile}


common = Common()

_FLAGS = {"--json": "json", "--debug": "debug"}
_VALUES = {"--url": "url", "--api-key": "api_key", "--profile": "profile"}
_HELP = [
    ("--json", "Machine-readable output, errors too."),
    ("--url URL", "The server (AENV_SYSTEM_URL)."),
    ("--api-key KEY", "Its key (AENV_API_KEY)."),
    ("--profile NAME", "A profile of the credentials file (AENV_PROFILE)."),
    ("--debug", "Show tracebacks."),
]


class _CommonOptions(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_take_common(self, ctx, args)))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        arguments = [one for one in self.get_params(ctx) if one.param_type_name == "argument"]
        return ["[OPTIONS]", *map(notations.usage, arguments)]

    def format_options(self, ctx: Any, formatter: Any) -> None:
        for kind, title in (("argument", "Arguments"), ("option", "Options")):
            found = [one for one in self.get_params(ctx) if one.param_type_name == kind]
            if records := [line for one in found if (line := notations.help_record(one, ctx))]:
                with formatter.section(title):
                    formatter.write_dl(records)
        _format_common(formatter)


class AenvCommand(_CommonOptions):
    """One command."""


class AenvGroup(TyperGroup):
    """Lists its commands by section (``rich_help_panel``)."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, list(_take_common(self, ctx, args)))

    def make_context(self, *args: Any, **settings: Any) -> Any:
        with _usage_for_machines():
            return super().make_context(*args, **settings)

    def invoke(self, ctx: Any) -> Any:
        with _usage_for_machines():
            return super().invoke(ctx)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        super().format_options(ctx, formatter)
        if ctx.parent is None:
            _format_common(formatter)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in commands.items():
            if command is not None and not command.hidden:
                panel = getattr(command, "rich_help_panel", None)
                section = panel if isinstance(panel, str) else "Commands"
                rows = sections.setdefault(section, [])
                rows.append((name, command.get_short_help_str(_WHOLE_SENTENCE)))
        for section in sorted(sections, key=_section_order):
            with formatter.section(section):
                formatter.write_dl(sections[section])


def new_app(**settings: Any) -> typer.Typer:
    return typer.Typer(
        cls=AenvGroup,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        **settings,
    )


app = new_app(name="aenv", help="Sandboxes for AI agents.", add_completion=True)


def command(name: str, section: str, **settings: Any) -> Callable[[F], F]:
    """Register a top-level command."""
    return subcommand(app, name, rich_help_panel=section, **settings)


def subcommand(group: typer.Typer, name: str, **settings: Any) -> Callable[[F], F]:
    return group.command(name, cls=AenvCommand, **settings)


def _take_common(command: Any, ctx: Any, args: list[str]) -> Iterator[str]:
    """Read our options out of ``args`` and yield the others.

    Stops at ``--``, and at the first positional where what follows belongs to a subcommand or to
    somebody else's command line.
    """
    with_value = {
        opt
        for param in command.params
        if param.param_type_name == "option"
        and not (getattr(param, "is_flag", False) or getattr(param, "count", False))
        for opt in param.opts
    }
    rest = iter(args)
    for arg in rest:
        name, equals, value = arg.partition("=")
        if arg in _FLAGS:
            setattr(common, _FLAGS[arg], True)
        elif name in _VALUES and name not in with_value:
            setattr(common, _VALUES[name], value if equals else _value(ctx, name, rest))
        elif arg == "--" or (not arg.startswith("-") and not ctx.allow_interspersed_args):
            yield arg
            yield from rest
        else:
            yield arg
            if arg in with_value:
                yield from (v for v in [next(rest, None)] if v is not None)


@contextmanager
def _usage_for_machines() -> Iterator[None]:
    """With ``--json`` wrong usage, too, is one line of JSON on stderr."""
    try:
        yield
    except _USAGE_ERROR as error:
        if not common.json or type(error).__name__ == "NoArgsIsHelpError":
            raise
        message = cast("typer.BadParameter", error).format_message()
        body = {"code": "usage", "message": message, "culprit": "caller"}
        typer.echo(json.dumps({"error": body}, ensure_ascii=False), err=True)
        raise typer.Exit(2) from error


def _section_order(section: str) -> int:
    return _SECTIONS.index(section) if section in _SECTIONS else len(_SECTIONS)


def _value(ctx: Any, name: str, rest: Iterator[str]) -> str:
    value = next(rest, None)
    if value is None:
        ctx.fail(f"Option '{name}' requires an argument.")
    return value  # type: ignore[return-value]


def _format_common(formatter: Any) -> None:
    with formatter.section("Common options"):
        formatter.write_dl(_HELP)


def is_tty(descriptor: int) -> bool:
    try:
        return os.isatty(descriptor)
    except OSError:
        return False
