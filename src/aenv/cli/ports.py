"""``port``: a port of a sandbox, as a URL or on a local port."""

from __future__ import annotations

from typing import Annotated

import typer

from aenv.cli.apps import FILES, command, common
from aenv.cli.outputs import emit, emit_json, note
from aenv.cli.sandboxes import Reference
from aenv.cli.sessions import run, sandbox


@command("port", FILES)
def port(
    reference: Reference,
    number: Annotated[int, typer.Argument(metavar="PORT", min=1, max=65535)],
    local: Annotated[
        int | None,
        typer.Option("-l", "--local", min=0, max=65535, help="Forward this port; 0 = any free."),
    ] = None,
    host: Annotated[str, typer.Option("--bind", help="Where to listen.")] = "127.0.0.1",
) -> None:
    """Print the URL of a port of a sandbox, or forward a local port to it."""
    run(_url(reference, number) if local is None else _forward(reference, number, host, local))


async def _url(reference: str, number: int) -> None:
    async with sandbox(reference) as found:
        url = found.url(number)
    emit_json({"url": url}) if common.json else emit(url)


async def _forward(reference: str, number: int, host: str, local: int) -> None:
    from aenv.sdk.forwards import Forward

    async with sandbox(reference) as found, Forward(found, number, host, local) as forward:
        if common.json:
            emit_json({"url": forward.url})
        else:
            emit(forward.url)
            note(f"forwards to port {number} of {found.id}; Ctrl-C ends it")
        await forward.serve()
