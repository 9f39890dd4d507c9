"""Reading the settings: ``config.toml`` in the config folder, then ``AENV_*`` variables, then the
caller's overrides.

Keys are the fields of :class:`~aenv.models.settings.Settings`; nested ones are tables in the file
(``[quotas]``/``sandboxes``), ``AENV_QUOTAS_SANDBOXES`` in the environment and ``quotas.sandboxes``
in overrides. Lists in the environment are comma-separated.
"""

from __future__ import annotations

import difflib
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from typing import Any

from aenv.models.errors import InvalidRequestError
from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.store import settings_rules

PREFIX = "AENV_"
FILE = "config.toml"


def load_settings(
    folders: Folders,
    overrides: Mapping[str, object] | None = None,
    env: Mapping[str, str] | None = None,
) -> Settings:
    """The settings of one server. InvalidRequestError names the key, where it stands and what it
    may be.

    ``overrides`` with the value None are unset. Unknown keys are errors that name the nearest known
    one; unknown ``AENV_*`` variables only when they look like a misspelt setting, as other programs
    share the prefix.
    """
    values = dict(_from_file(folders))
    values.update(_from_environment(env or {}))
    values.update(_from_overrides(overrides or {}))
    settings: Settings = _build(Settings, values, folders=folders)
    settings_rules.check(settings)
    return settings


@cache
def known_keys() -> dict[str, Any]:
    """Dotted key → type."""
    return dict(_walk(Settings, ""))


def _walk(kind: type[Any], prefix: str) -> Iterator[tuple[str, Any]]:
    hints = typing.get_type_hints(kind)
    for field in fields(kind):
        hint = hints[field.name]
        if hint is Folders:
            continue
        if is_dataclass(hint) and isinstance(hint, type):
            yield from _walk(hint, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, hint


def _from_file(folders: Folders) -> Iterator[tuple[str, Any]]:
    path = folders.config / FILE
    try:
        content = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        raise InvalidRequestError(f"{path} cannot be read: {error}") from error
    for key, value in _flatten(content, ""):
        yield key, _checked(key, value, str(path))


def _flatten(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in table.items():
        if isinstance(value, dict) and prefix + name not in known_keys():
            yield from _flatten(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _from_environment(env: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    known = {PREFIX + key.replace(".", "_").upper(): key for key in known_keys()}
    for name, text in env.items():
        if not name.startswith(PREFIX) or text == "":
            continue
        if name in known:
            yield known[name], _parsed(known[name], text, name)
        elif name not in settings_rules.OTHER_VARIABLES and (
            near := difflib.get_close_matches(name, known, 1, cutoff=0.88)
        ):
            raise InvalidRequestError(f"unknown variable {name}; did you mean {near[0]}?")


def _from_overrides(overrides: Mapping[str, object]) -> Iterator[tuple[str, Any]]:
    for key, value in overrides.items():
        if value is not None:
            yield key, _checked(key, value, "the command line")


def _checked(key: str, value: Any, where: str) -> Any:
    hint = known_keys().get(key)
    if hint is None:
        near = difflib.get_close_matches(key, known_keys(), 1, cutoff=0.6)
        advice = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known_keys())}"
        raise InvalidRequestError(f"unknown setting {key!r} in {where}; {advice}")
    kind = _plain(hint)
    if kind is tuple and isinstance(value, list | tuple):
        if all(isinstance(item, str) for item in value):
            return tuple(value)
    elif kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    elif type(value) is kind:
        return value
    raise InvalidRequestError(
        f"setting {key!r} in {where} must be {_described(kind)}, not {_shown(key, value)}"
    )


def _parsed(key: str, text: str, where: str) -> Any:
    kind = _plain(known_keys()[key])
    try:
        if kind is tuple:
            return tuple(part.strip() for part in text.split(",") if part.strip())
        if kind is bool:
            return {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}[
                text.lower()
            ]
        return kind(text)
    except (ValueError, KeyError) as error:
        shown = _shown(key, text)
        raise InvalidRequestError(f"{where} must be {_described(kind)}, not {shown}") from error


def _shown(key: str, value: object) -> str:
    return "its value" if key in settings_rules.SECRET else repr(value)


def _plain(hint: Any) -> Any:
    """``int | None`` → ``int``; ``tuple[str, ...]`` → ``tuple``."""
    if isinstance(hint, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not type(None))
    return typing.get_origin(hint) or hint


def _described(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    return names.get(kind, "a list of texts")


def _build(kind: type[Any], values: Mapping[str, Any], prefix: str = "", **given: Any) -> Any:
    hints = typing.get_type_hints(kind)
    for field in fields(kind):
        key = prefix + field.name
        if is_dataclass(hints[field.name]) and field.name not in given:
            given[field.name] = _build(hints[field.name], values, f"{key}.")
        elif key in values:
            given[field.name] = values[key]
        elif field.name not in given and field.default is MISSING:
            raise InvalidRequestError(f"setting {key!r} has no value")
    return kind(**given)
