"""How results look: tables for people, JSON for machines, one line for an error."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, is_dataclass
from datetime import UTC, datetime
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aenv.cli.apps import common, is_tty
from aenv.models.errors import AenvError

if TYPE_CHECKING:
    from rich.table import Table


def emit_json(value: Any) -> None:
    print(json.dumps(value, default=_plain, ensure_ascii=False), flush=True)  # noqa: T201


def emit(text: str) -> None:
    """A line of result on stdout."""
    print(text, flush=True)  # noqa: T201


def note(text: str) -> None:
    """A line for the person at the terminal; never on stdout."""
    print(text, file=sys.stderr, flush=True)  # noqa: T201


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """On a terminal with colours; into a pipe as plain columns, nothing cut."""
    cells = [[str(cell) for cell in row] for row in rows]
    if is_tty(1):
        from rich.console import Console

        Console().print(rich_table(columns, cells))
        return
    widths = [
        max(len(column), *(len(row[i]) for row in cells)) if cells else len(column)
        for i, column in enumerate(columns)
    ]
    for row in [[c.upper() for c in columns], *cells]:
        emit(
            "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def failure(error: BaseException) -> None:
    """One line on stderr: what happened and what to do about it."""
    if common.json:
        code = error.code if isinstance(error, AenvError) else type(error).__name__
        body = {"code": code, "message": str(error)}
        if isinstance(error, AenvError):
            body["culprit"] = error.culprit.value
        note(json.dumps({"error": body}, ensure_ascii=False))
    else:
        note(f"aenv: {' '.join(str(error).split()) or type(error).__name__}")


def size(number: float) -> str:
    """1536 → ``1.5 KiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(number) < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def age(since: datetime, *, now: datetime | None = None) -> str:
    """``42s``, ``7m``, ``3h``, ``2d``."""
    return span((now or datetime.now(UTC)) - since)


def span(delta: Any) -> str:
    seconds = int(delta.total_seconds())
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{max(seconds, 0)}s"


def counted(count: int) -> str:
    """``1 sandbox``, ``2 sandboxes``."""
    return f"{count} sandbox" + ("" if count == 1 else "es")


def pairs(values: Sequence[str], what: str) -> dict[str, str]:
    """``["A=1"]`` → ``{"A": "1"}``."""
    found = {}
    for value in values:
        key, equals, rest = value.partition("=")
        if not equals or not key:
            import typer

            raise typer.BadParameter(f"{what} must be KEY=VALUE, not {value!r}")
        found[key] = rest
    return found


def rich_table(columns: Sequence[str], cells: Iterable[Sequence[str]]) -> Table:
    """Narrow terminals fold every cell but ids, which people copy."""
    from rich.table import Table
    from rich.text import Text

    shown = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, overflow="fold", no_wrap=column == "id")
    for row in cells:
        shown.add_row(*(Text(cell) for cell in row))
    return shown


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, datetime):
        return value.isoformat().replace("+00:00", "Z")
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    raise TypeError(f"{type(value).__name__} has no JSON form")
