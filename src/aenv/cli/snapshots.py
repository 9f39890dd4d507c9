"""``snapshot``: sandboxes as they were, to start others from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from aenv.cli.apps import SANDBOXES, app, common, is_tty, new_app, subcommand
from aenv.cli.outputs import age, emit, emit_json, note, size, table
from aenv.cli.sessions import full_id, run, sandbox

if TYPE_CHECKING:
    from aenv.sdk import SnapshotInfo

snapshots = new_app(help="Sandboxes as they were: create, list, inspect, verify, evict, delete.")
app.add_typer(snapshots, name="snapshot", rich_help_panel=SANDBOXES)

Reference = Annotated[str, typer.Argument(metavar="SNAPSHOT", help="Its id or name.")]


@subcommand(snapshots, "create")
def create(
    reference: Annotated[str, typer.Argument(metavar="ID", help="A sandbox id.")],
    name: Annotated[str | None, typer.Option("--name", help="NAME or NAME:TAG.")] = None,
    no_memory: Annotated[
        bool, typer.Option("--no-memory", help="The files alone; what starts from it boots.")
    ] = False,
) -> None:
    """Keep a running sandbox as it is now; it runs on."""

    async def work() -> SnapshotInfo:
        async with sandbox(await full_id(reference)) as found:
            return await found.snapshot(name, memory=not no_memory)

    kept = run(work())
    if common.json:
        emit_json(kept)
    else:
        emit(kept.id)


@subcommand(snapshots, "list")
@subcommand(snapshots, "ls", hidden=True)
def list_(
    source: Annotated[str | None, typer.Option("--sandbox", help="Only of this sandbox.")] = None,
    name: Annotated[str | None, typer.Option("--name", help="Only of this name.")] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only ids.")] = False,
) -> None:
    """List snapshots, newest first. OWN is what deleting one frees, SHARED what others need too;
    WHERE is local, stored (in the blob store) or both.
    """

    async def work() -> list[SnapshotInfo]:
        from aenv.sdk import AsyncSnapshot

        sandbox_id = await full_id(source) if source else None
        return await AsyncSnapshot.list(sandbox=sandbox_id, name=name, **common.server)

    found = run(work())
    if common.json:
        emit_json(found)
    elif quiet:
        for one in found:
            emit(one.id)
    else:
        table(
            ("id", "sandbox", "template", "memory", "own", "shared", "where", "age"),
            [
                (
                    one.id,
                    one.sandbox,
                    one.base,
                    "yes" if one.has_memory else "no",
                    size(one.own_bytes),
                    size(one.shared_bytes),
                    one.place,
                    age(one.created_at),
                )
                for one in found
            ],
        )


@subcommand(snapshots, "inspect")
def inspect(reference: Reference) -> None:
    """Show everything about a snapshot."""

    async def work() -> SnapshotInfo:
        from aenv.sdk import AsyncSnapshot

        return await AsyncSnapshot.get(reference, **common.server)

    one = run(work())
    if common.json:
        emit_json(one)
        return
    rows = [
        ("id", one.id),
        ("template id", one.template),
        ("from sandbox", one.sandbox),
        ("over template", one.base),
        ("memory", "yes" if one.has_memory else "no"),
        ("own", size(one.own_bytes)),
        ("shared", size(one.shared_bytes)),
        ("where", one.place),
        ("created", f"{one.created_at:%Y-%m-%d %H:%M:%S} ({age(one.created_at)} ago)"),
    ]
    table(("what", "value"), rows)


@subcommand(snapshots, "verify")
def verify(
    references: Annotated[
        list[str] | None, typer.Argument(metavar="SNAPSHOT...", help="Default: all.")
    ] = None,
) -> None:
    """Read all of snapshots, memory and disk, and tell which are whole; exit 1 if one is not."""

    async def work() -> list[tuple[str, str | None]]:
        from aenv.sdk import AsyncSnapshot

        if references:
            return [(one, await _damage(one)) for one in references]
        every = await AsyncSnapshot.list(**common.server)
        return [(one.id, await _damage(one.id)) for one in every]

    outcomes = run(work())
    if common.json:
        emit_json([{"id": one, "damage": damage} for one, damage in outcomes])
    else:
        for one, damage in outcomes:
            if damage is None:
                emit(one)
            else:
                note(f"aenv: {damage}")
    raise typer.Exit(1 if any(damage for _, damage in outcomes) else 0)


async def _damage(reference: str) -> str | None:
    from aenv.models.errors import SnapshotDamagedError
    from aenv.sdk import AsyncSnapshot

    try:
        await AsyncSnapshot.verify(reference, **common.server)
    except SnapshotDamagedError as error:
        return error.message
    return None


@subcommand(snapshots, "evict")
def evict(
    references: Annotated[
        list[str], typer.Argument(metavar="ID...", help="Snapshots or paused sandboxes.")
    ],
) -> None:
    """Free what snapshots take on this host: they are put into the blob store, and fetched again by
    what starts from them.
    """

    async def work() -> list[str]:
        from aenv.sdk import AsyncSnapshot

        for one in references:
            await AsyncSnapshot.evict(one, **common.server)
        return references

    done = run(work())
    if common.json:
        emit_json({"evicted": done})
    else:
        for one in done:
            emit(one)


@subcommand(snapshots, "delete")
@subcommand(snapshots, "rm", hidden=True)
def delete(
    references: Annotated[list[str], typer.Argument(metavar="SNAPSHOT...")],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    all_tags: Annotated[
        bool, typer.Option("--all-tags", help="Every tag of each NAME, not its default one.")
    ] = False,
) -> None:
    """Delete snapshots; sandboxes that were started from them run on."""
    if is_tty(0) and not yes:
        what = "names with every tag" if all_tags else "snapshots"
        typer.confirm(f"Delete {len(references)} {what}?", abort=True, err=True)

    async def work() -> list[tuple[str, bool]]:
        from aenv.sdk import AsyncSnapshot

        return [
            (one, await AsyncSnapshot.delete(one, all_tags=all_tags, **common.server))
            for one in references
        ]

    outcomes = run(work())
    missing = [one for one, deleted in outcomes if not deleted]
    gone = [one for one, deleted in outcomes if deleted]
    if common.json:
        emit_json({"deleted": gone, "missing": missing})
    else:
        for one in gone:
            emit(one)
        for one in missing:
            note(f"aenv: there is no snapshot {one}")
    raise typer.Exit(1 if missing else 0)
