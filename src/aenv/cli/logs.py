"""``logs``."""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING, Annotated

import typer

from aenv.cli.apps import SANDBOXES, command, common
from aenv.cli.outputs import emit, emit_json
from aenv.cli.sandboxes import Reference
from aenv.cli.sessions import client, full_id, run

if TYPE_CHECKING:
    from aenv.sdk import LogLine


@command("logs", SANDBOXES)
def logs(
    reference: Reference,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Go on until the sandbox ends.")
    ] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", min=0, max=1000)] = 1000,
    search: Annotated[str | None, typer.Option(help="Only lines with this text.")] = None,
    timestamps: Annotated[bool, typer.Option("-t", "--timestamps")] = False,
) -> None:
    """Show what a sandbox's processes and agent wrote."""
    run(_logs(reference, follow=follow, limit=lines, search=search, timestamps=timestamps))


async def _logs(
    reference: str, *, follow: bool, limit: int, search: str | None, timestamps: bool
) -> None:
    from aenv.sdk import logs as reading

    sandbox_id = await full_id(reference)
    async with client() as server:
        if not follow:
            for line in await reading.newest(server, sandbox_id, limit=limit, search=search):
                _show(line, timestamps)
            return
        lines = reading.follow(server, sandbox_id, limit=limit, search=search)
        async with aclosing(lines):
            async for line in lines:
                _show(line, timestamps)


def _show(line: LogLine, timestamps: bool) -> None:
    if common.json:
        emit_json(line)
    else:
        stamp = f"{line.timestamp:%Y-%m-%dT%H:%M:%S.%f}Z " if timestamps else ""
        emit(stamp + line.message)
