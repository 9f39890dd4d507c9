"""``store``: what the blob store and the server's folders hold, and whether it is sound."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import typer

from aenv.cli import builds
from aenv.cli.apps import SERVER, app, common, new_app, subcommand
from aenv.cli.outputs import emit, emit_json, note, size, table
from aenv.cli.sessions import client, run

if TYPE_CHECKING:
    from aenv.models.blobs import Progress, SpaceUse

stores = new_app(help="Blobs and folders: usage, verify, gc.")
app.add_typer(stores, name="store", rich_help_panel=SERVER)


@subcommand(stores, "usage")
def usage() -> None:
    """Tell what every byte of the blob store and of the server's folders is for."""

    async def work() -> None:
        from aenv.sdk import storage

        async with client() as server:
            with builds.bar("counting") as bar:
                store, host = await storage.usage(server, _report(bar))
        if common.json:
            emit_json({"store": store, "host": host})
            return
        emit(f"blob store at {store.location}: {size(store.bytes_stored)}")
        emit(f"{store.blobs} blobs, {size(store.bytes_logical)} if each were stored by itself")
        emit("")
        table(("bytes", "files", "what", "where"), [*_rows(store.parts), *_rows(host)])

    run(work())


@subcommand(stores, "gc")
def gc() -> None:
    """Free what nobody needs any more; safe at any time."""

    async def work() -> None:
        from aenv.sdk import storage

        async with client() as server:
            with builds.bar("collecting") as bar:
                done = await storage.gc(server, _report(bar))
        if common.json:
            emit_json(done)
        else:
            count = done.objects_deleted + done.unknown_deleted
            emit(f"freed {size(done.bytes_freed)}: {done.blobs} blobs, {count} objects")

    run(work())


@subcommand(stores, "verify")
def verify() -> None:
    """Read every object and compare it with its digest; status 1 when something is damaged."""

    async def work() -> int:
        from aenv.sdk import storage

        async with client() as server:
            with builds.bar("verifying") as bar:
                found = await storage.verify(server, _report(bar))
        if common.json:
            emit_json(found)
        else:
            emit(f"read {size(found.bytes_read)}: {found.blobs} blobs in {found.chunks} chunks")
            for one in found.damages:
                who = ", ".join(one.holders) or "nobody"
                note(f"aenv: {one.key}: {one.reason}; needed by {who}")
        return 1 if found.damages else 0

    raise typer.Exit(run(work()))


def _rows(uses: Iterable[SpaceUse]) -> list[tuple[str, int, str, str]]:
    return [(size(one.bytes), one.count, one.name, one.place) for one in uses]


def _report(bar: builds.Report) -> Callable[[Progress], None]:
    def report(now: Progress) -> None:
        count = f"{now.done} of {now.total}" if now.total else str(now.done)
        bar(now.done / now.total if now.total else 0.0, f"{now.step}: {count}")

    return report
