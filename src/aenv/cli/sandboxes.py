"""``ls``, ``inspect``, ``timeout``, ``rm``."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from aenv.cli.apps import SANDBOXES, SIGNED, command, common, is_tty
from aenv.cli.outputs import age, counted, emit, emit_json, note, pairs, size, span, table
from aenv.cli.sessions import full_id, run, sandbox
from aenv.models.sandboxes import SandboxState

if TYPE_CHECKING:
    from aenv.models.sandboxes import SandboxMetrics
    from aenv.sdk import SandboxInfo

Reference = Annotated[str, typer.Argument(metavar="ID", help="A sandbox id, or its beginning.")]
Filter = Annotated[
    list[str] | None, typer.Option("--filter", help="Only with this metadata, KEY=VALUE.")
]


class State(StrEnum):
    RUNNING = "running"
    PAUSED = "paused"


@command("ls", SANDBOXES)
@command("list", SANDBOXES, hidden=True)
def ls(
    filters: Filter = None,
    state: Annotated[
        State | None, typer.Option("--state", help="Only running or only paused ones.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only ids.")] = False,
) -> None:
    """List sandboxes, newest first."""
    found = run(_list(filters, state))
    if common.json:
        emit_json(found)
    elif quiet:
        for info in found:
            emit(info.id)
    else:
        named = any(info.parent_snapshot for info in found)
        _show(found, run(_snapshots()) if named else {})


@command("inspect", SANDBOXES)
def inspect(reference: Reference) -> None:
    """Show everything about a sandbox."""
    info, metrics = run(_inspect(reference))
    if common.json:
        emit_json({"sandbox": info, "metrics": metrics})
        return
    rows = [
        ("id", info.id),
        ("template", info.alias or info.template),
        ("state", info.state),
        ("engine", (info.engine or "-") + ("" if info.isolated else " (no isolation)")),
        ("started", f"{info.started_at:%Y-%m-%d %H:%M:%S} ({age(info.started_at)} ago)"),
        ("ends", _end(info)),
        *(
            (what, value)
            for what, value in (
                ("kept", info.pause_mode),
                ("came back", info.restored),
                ("note", info.note),
                ("from sandbox", info.parent_sandbox),
            )
            if value
        ),
        ("cpu", f"{info.cpu:g}"),
        ("memory", size(info.memory_mb * 2**20)),
        ("disk", size(info.disk_mb * 2**20)),
        *((f"metadata.{key}", value) for key, value in sorted(info.metadata.items())),
    ]
    if metrics is not None:
        rows.append(("cpu used", f"{metrics.cpu_used_pct:.1f} %"))
        rows.append(("memory used", size(metrics.mem_used)))
        rows.append(("disk used", size(metrics.disk_used)))
    table(("what", "value"), rows)


@command("timeout", SANDBOXES, context_settings=SIGNED)
def timeout(
    reference: Reference,
    seconds: Annotated[int, typer.Argument(metavar="SECS", min=0, help="0 ends it now.")],
) -> None:
    """Let a sandbox end so many seconds from now."""
    run(_set_timeout(reference, seconds))
    if common.json:
        emit_json({"timeout": seconds})


@command("rm", SANDBOXES)
@command("delete", SANDBOXES, hidden=True)
def rm(
    references: Annotated[list[str] | None, typer.Argument(metavar="ID...")] = None,
    everything: Annotated[bool, typer.Option("--all", help="All sandboxes of the key.")] = False,
    filters: Filter = None,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Kill sandboxes."""
    if bool(references) == bool(everything or filters):
        raise typer.BadParameter("name sandboxes, or use --all or --filter")
    ids = run(_chosen(references, filters))
    if (everything or filters) and ids and not yes:
        if not is_tty(0):
            raise typer.BadParameter("killing several sandboxes without a terminal needs -y")
        typer.confirm(f"Kill {counted(len(ids))}?", abort=True, err=True)
    gone, missing = run(_kill(ids))
    if common.json:
        emit_json({"killed": gone, "missing": missing})
    else:
        for one in gone:
            emit(one)
        for one in missing:
            note(f"aenv: there is no sandbox {one}")
    raise typer.Exit(1 if missing else 0)


def _end(info: SandboxInfo) -> str:
    if info.state is SandboxState.PAUSED:
        return "never while it is paused"
    return f"{info.end_at:%Y-%m-%d %H:%M:%S} (in {span(info.end_at - datetime.now(UTC))})"


def _show(found: list[SandboxInfo], snapshots: Mapping[str, str]) -> None:
    """``snapshots``: their ids by their images."""
    now = datetime.now(UTC)
    table(
        ("id", "template", "state", "age", "ends in", "cpu", "memory", "metadata"),
        [
            (
                info.id,
                _origin(info, snapshots),
                info.state + ("" if info.isolated else " (no isolation)"),
                age(info.started_at, now=now),
                "-" if info.state is SandboxState.PAUSED else span(info.end_at - now),
                f"{info.cpu:g}",
                size(info.memory_mb * 2**20),
                " ".join(f"{key}={value}" for key, value in sorted(info.metadata.items())),
            )
            for info in found
        ],
    )


def _origin(info: SandboxInfo, snapshots: Mapping[str, str]) -> str:
    """The snapshot it was started from while that is there, else the template."""
    return snapshots.get(info.parent_snapshot or "") or info.alias or info.template


async def _snapshots() -> dict[str, str]:
    from aenv.sdk import AsyncSnapshot

    return {one.image: one.id for one in await AsyncSnapshot.list(**common.server)}


async def _list(filters: list[str] | None, state: State | None = None) -> list[SandboxInfo]:
    from aenv.sdk import AsyncSandbox

    metadata = pairs(filters or [], "--filter")
    return await AsyncSandbox.list(
        metadata=metadata, state=state.value if state else None, **common.server
    )


async def _inspect(reference: str) -> tuple[SandboxInfo, SandboxMetrics | None]:
    async with sandbox(reference) as found:
        samples = await found.metrics()
        return await found.info(), samples[-1] if samples else None


async def _set_timeout(reference: str, seconds: int) -> None:
    async with sandbox(reference) as found:
        await found.set_timeout(seconds)


async def _chosen(references: list[str] | None, filters: list[str] | None) -> list[str]:
    if references:
        return list(dict.fromkeys([await full_id(reference) for reference in references]))
    return [info.id for info in await _list(filters)]


async def _kill(ids: list[str]) -> tuple[list[str], list[str]]:
    """Killed ones, and those that were gone already; eight at a time."""
    from aenv.sdk import servers

    limit = asyncio.Semaphore(8)

    async def kill(one: str) -> bool:
        async with limit:
            return await servers.kill(client, one)

    client = await servers.connect(**common.server)
    try:
        outcomes = await asyncio.gather(*map(kill, ids))
    finally:
        await client.aclose()
    gone = [one for one, killed in zip(ids, outcomes, strict=True) if killed]
    return gone, [one for one in ids if one not in gone]
