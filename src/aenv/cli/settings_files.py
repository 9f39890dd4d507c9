"""The settings file (``config.toml``) as ``aenv config`` reads and writes it."""

from __future__ import annotations

import json
import os
import tomllib
from typing import Any

from aenv.models.errors import InvalidRequestError
from aenv.models.folders import Folders
from aenv.store.settings import FILE, known_keys, load_settings
from aenv.store.settings_rules import SECRET


def read() -> dict[str, Any]:
    """Every setting as a server started now would see it, by dotted key; secrets hidden."""
    settings = load_settings(Folders.resolve(), env=os.environ)
    values = {key: _value(settings, key) for key in known_keys()}
    return {k: "…" if k in SECRET and v else v for k, v in values.items()}


def write(key: str, text: str) -> None:
    """Set one key; every other stays. InvalidRequestError for what no server would accept."""
    folders = Folders.resolve()
    value = _parsed(folders, key, text)
    path = folders.config / FILE
    content = _flat(tomllib.loads(path.read_text())) if path.exists() else {}
    content[key] = value
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    fresh = path.with_suffix(".new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with open(descriptor, "w") as file:
        file.write(_dumped(content))
    os.replace(fresh, path)


def _parsed(folders: Folders, key: str, text: str) -> Any:
    """Read the text as the environment's are read, so that one rule holds for both."""
    known = known_keys()
    if key not in known:
        load_settings(folders, {key: text})
    variable = "AENV_" + key.replace(".", "_").upper()
    try:
        value = _value(load_settings(folders, env={variable: text}), key)
    except InvalidRequestError as error:
        raise InvalidRequestError(str(error).replace(variable, key)) from None
    return list(value) if isinstance(value, tuple) else value


def _value(settings: Any, key: str) -> Any:
    for part in key.split("."):
        settings = getattr(settings, part)
    return settings


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in table.items():
        inner = _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else None
        found |= inner if inner is not None else {prefix + name: value}
    return found


def _dumped(content: dict[str, Any]) -> str:
    """TOML with dotted keys; JSON's strings, numbers, booleans and lists are TOML's too."""
    lines = [
        f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in sorted(content.items())
    ]
    return "\n".join(lines) + "\n"
