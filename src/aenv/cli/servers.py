"""``server``, ``up``, ``down``, ``version``."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from aenv.cli.apps import SERVER, app, command, common, is_tty
from aenv.cli.outputs import counted, emit, emit_json, note
from aenv.cli.sessions import run

if TYPE_CHECKING:
    from aenv.models.folders import Folders

Data = Annotated[Path | None, typer.Option("--data", help="The data folder (AENV_DATA_DIR).")]
Host = Annotated[str | None, typer.Option(help="Where to listen; default 127.0.0.1.")]
Port = Annotated[int | None, typer.Option(min=0, max=65535, help="Default 8000; 0 = any free.")]
Engine = Annotated[str | None, typer.Option(help="Default gvisor; `process` isolates nothing.")]

_DOWN_DEADLINE = 60.0


@command("server", SERVER)
def server(
    host: Host = None,
    port: Port = None,
    data: Data = None,
    engine: Engine = None,
    idle_exit: Annotated[
        float | None, typer.Option(help="End after so many seconds without sandbox or request.")
    ] = None,
) -> None:
    """Run the server in the foreground; Ctrl-C ends it and leaves sandboxes running."""
    import gc
    import os

    gc.disable()  # until the server is ready: a start makes much and drops little
    from aenv.sdk.local_servers import require_server_extra

    require_server_extra()
    from aenv.node import leftovers
    from aenv.server.serve import serve
    from aenv.store.settings import load_settings

    overrides = {"host": host, "port": port, "engine": engine, "idle_exit": idle_exit}
    settings = load_settings(_folders(data), overrides, os.environ)
    code = serve(settings, ready=_ready)
    if is_tty(2) and (left := len(leftovers.machines(settings.folders))):
        _tell_down(stopped=True, killed=0, left=left)
    raise typer.Exit(code)


@command("up", SERVER)
def up(host: Host = None, port: Port = None, data: Data = None, engine: Engine = None) -> None:
    """Start the server in the background, unless it runs."""
    from aenv.models.settings import NO_ISOLATION
    from aenv.sdk import holders, local_servers

    launch = local_servers.Launch(
        _folders(data), engine=engine, host=host, port=port, idle_exit=None, strict=data is not None
    )
    before = holders.running(launch.folders.data)
    endpoint = local_servers.find_or_start(launch)
    if not before and (engine or local_servers.configured(launch.folders, "engine")) == "process":
        note(f"aenv: {NO_ISOLATION}")
    if before and port not in (None, 0, urlsplit(endpoint.url).port):
        note(f"--port {port} is not used: the server listens where it was started; aenv down first")
    if common.json:
        emit_json({"url": endpoint.url, "started": before is None})
    else:
        emit(endpoint.url)
        if not before and port is None and local_servers.displaced(launch.folders, endpoint.url):
            note("another program has the default port: this one is used instead")
        note(
            "the server runs already" if before else f"log: {local_servers.log_of(launch.folders)}"
        )


@command("down", SERVER)
def down(
    data: Data = None,
    kill: Annotated[
        bool | None, typer.Option("--kill/--keep", help="End its sandboxes too, or let them run.")
    ] = None,
) -> None:
    """End the server of this machine; asks what to do with running sandboxes."""
    from aenv.sdk import holders

    folders = _folders(data)
    if holders.holder_of(folders.data) is None:
        _down_without_server(folders, kill)
        return
    count = run(_running(folders))
    kill = _asked(count) if kill is None else kill
    run(_shut_down(folders, kill=kill))
    _wait_for_end(folders)
    _tell_down(stopped=True, killed=count if kill else 0, left=0 if kill else count)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@command("version", SERVER)
def version() -> None:
    """Show the version."""
    from aenv._version import __version__

    emit_json({"version": __version__}) if common.json else emit(f"aenv {__version__}")


@app.callback()
def _top(
    version_: Annotated[
        bool,
        typer.Option("--version", is_eager=True, callback=_print_version, help="Show the version."),
    ] = False,
) -> None:
    """Sandboxes for AI agents."""


def _asked(count: int) -> bool:
    return (
        count > 0
        and is_tty(0)
        and typer.confirm(
            f"{counted(count)} running. Kill? (No: left running for the next `aenv up`)",
            err=True,
        )
    )


def _down_without_server(folders: Folders, kill: bool | None) -> None:
    """The server was killed or has crashed; its sandboxes may live on."""
    from aenv.node import leftovers

    count = len(leftovers.machines(folders))
    kill = _asked(count) if kill is None else kill
    if kill and leftovers.exist(folders):
        killed = run(_clear(folders))
        _tell_down(stopped=False, killed=killed)
    else:
        _tell_down(stopped=False, killed=0, left=count)


async def _clear(folders: Folders) -> int:
    import os

    from aenv.control import leftovers
    from aenv.sdk.local_servers import require_server_extra
    from aenv.server import logs
    from aenv.store.settings import load_settings

    require_server_extra()
    logs.configure(level=logging.WARNING)
    killed, failed = await leftovers.clear(load_settings(folders, env=os.environ))
    for one in failed:
        note(f"aenv: could not kill {one}")
    return killed


def _ready(url: str) -> None:
    emit_json({"url": url}) if common.json else emit(url)


def _folders(data: Path | None) -> Folders:
    from aenv.models.folders import Folders

    return Folders.resolve(data=data)


async def _running(folders: Folders) -> int:
    from aenv.sdk import local_servers, servers
    from aenv.sdk.client import Client

    client = Client(local_servers.own(folders))
    try:
        return len(await servers.list_sandboxes(client))
    finally:
        await client.aclose()


async def _shut_down(folders: Folders, *, kill: bool) -> None:
    from aenv.sdk import local_servers
    from aenv.sdk.client import Client

    client = Client(local_servers.own(folders))
    try:
        answer = await client.call("POST", "/admin/shutdown", json={"kill": kill})
    finally:
        await client.aclose()
    for one in answer.json().get("failed") or ():
        note(f"aenv: could not kill {one}")


def _wait_for_end(folders: Folders) -> None:
    """Until the data folder is free: then another server may be started."""
    from aenv.models.errors import InfrastructureError
    from aenv.sdk import holders, local_servers

    deadline = time.monotonic() + _DOWN_DEADLINE
    while (holder := holders.holder_of(folders.data)) is not None:
        if time.monotonic() > deadline:
            raise InfrastructureError(
                f"the server (process {holder.get('pid')}) did not end within {_DOWN_DEADLINE:g} s;"
                f" see {local_servers.log_of(folders)}"
            )
        time.sleep(0.05)


def _tell_down(*, stopped: bool, killed: int, left: int = 0) -> None:
    if common.json:
        emit_json({"stopped": stopped, "killed": killed, "running": left})
    elif not stopped:
        note(f"no server runs{_remnant(killed, left)}")
    elif left:
        note(f"the server has ended; it left {counted(left)} running")
    else:
        note("the server has ended" + (f"; killed {counted(killed)}" if killed else ""))


def _remnant(killed: int, left: int) -> str:
    if killed:
        return f"; killed {counted(killed)} it had left running"
    if left:
        return (
            f", but it left {counted(left)} running: `aenv up` takes over, `aenv down --kill` kills"
        )
    return ""
