"""How ``--help`` writes a command: ``aenv exec [OPTIONS] ID CMD...``, ``--user USER``."""

from __future__ import annotations

from typing import Any

_NUMBERS = (int, float)


def usage(parameter: Any) -> str:
    """An argument in the usage line."""
    name = argument(parameter)
    return name if parameter.required else f"[{name}]"


def argument(parameter: Any) -> str:
    """Its name; three dots where it may be given several times."""
    name = str(parameter.metavar or parameter.name.upper().replace("_", "-")).strip("[]")
    return f"{name}..." if parameter.nargs != 1 and not name.endswith("...") else name


def help_record(parameter: Any, ctx: Any) -> tuple[str, str] | None:
    """Its line of help; None where it is hidden."""
    record: tuple[str, str] | None = parameter.get_help_record(ctx)
    if record is None:
        return None
    if parameter.param_type_name == "argument":
        return argument(parameter), record[1].removesuffix("[required]").rstrip()
    shown = parameter.display_type_rich(ctx)
    return record[0].replace(str(shown), _value(parameter)) if shown else record[0], record[1]


def _value(option: Any) -> str:
    if option.metavar:
        return str(option.metavar)
    if "KEY=VALUE" in (option.help or ""):
        return "KEY=VALUE"
    if option.type_descriptor.annotation in _NUMBERS:
        return "N"
    return str(option.name).upper().replace("_", "-")
