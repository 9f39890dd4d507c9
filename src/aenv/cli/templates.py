"""``template``: what sandboxes start from."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from aenv.cli import builds
from aenv.cli.apps import TEMPLATES, app, common, is_tty, new_app, subcommand
from aenv.cli.outputs import age, emit_json, note, size, table
from aenv.cli.sessions import client, run

if TYPE_CHECKING:
    from aenv.models.templates import TemplateProgress
    from aenv.sdk import TemplateSummary

templates = new_app(help="What sandboxes start from: build, list, inspect, delete, watch.")
app.add_typer(templates, name="template", rich_help_panel=TEMPLATES)

Name = Annotated[str, typer.Argument(metavar="NAME")]


@subcommand(templates, "list")
@subcommand(templates, "ls", hidden=True)
def list_() -> None:
    """List templates and how far they are."""

    async def fetch() -> list[TemplateSummary]:
        from aenv.sdk import creates

        async with client() as server:
            return await creates.templates(server)

    found = run(fetch())
    if common.json:
        emit_json(found)
        return
    table(
        ("name", "id", "status", "cpu", "memory", "size", "digest"),
        [
            (
                ", ".join(t.names),
                t.id,
                t.status,
                f"{t.cpu:g}",
                size(t.memory_mb * 2**20),
                size(t.size_bytes) if t.size_bytes else "",
                (t.digest or "")[:12],
            )
            for t in found
        ],
    )


@subcommand(templates, "inspect")
def inspect(name: Name) -> None:
    """Show everything about a template."""

    async def fetch() -> dict[str, Any]:
        async with client() as server:
            return dict((await server.call("GET", f"/templates/{name}")).json())

    found = run(fetch())
    if common.json:
        emit_json(found)
    else:
        table(("what", "value"), list(_described(found)))


@subcommand(templates, "delete")
@subcommand(templates, "rm", hidden=True)
def delete(
    name: Name, yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False
) -> None:
    """Free a template's files."""
    if not yes:
        if not is_tty(0):
            raise typer.BadParameter("deleting a template without a terminal needs -y")
        typer.confirm(f"Delete the template {name}?", abort=True, err=True)

    async def remove() -> None:
        from aenv.sdk import creates

        async with client() as server:
            await creates.delete_template(server, name)

    run(remove())
    if common.json:
        emit_json({"deleted": name})


@subcommand(templates, "build")
def build(
    name: Annotated[str, typer.Argument(metavar="base|host")] = "base",
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Only start it.")] = False,
) -> None:
    """Build a built-in template: joins a build that runs, goes on after one that failed."""
    if name not in ("base", "host"):
        raise typer.BadParameter(
            f"{name!r} is not built in: base or host; your own: aenv build, an image: aenv pull"
        )

    async def work() -> TemplateProgress:
        from aenv.sdk import builds as remote

        async with client() as server:
            if detach:
                return await remote.start(server, name)
            return await builds.bring_about(server, name)

    _report(run(work()))


@subcommand(templates, "watch")
def watch(name: Name = "base") -> None:
    """Follow a build to its end, without starting one."""

    async def work() -> TemplateProgress:
        from aenv.models.errors import NotFoundError
        from aenv.sdk import builds as remote

        async with client() as server:
            try:
                return await builds.follow(server, name)
            except NotFoundError:  # none of the node's own: one that somebody built
                return await builds.follow(server, name, ask=remote.newest)

    _report(run(work()))


def _described(template: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "id", template["templateID"]
    yield "names", ", ".join(template["names"])
    if builds := template["builds"]:
        newest = max(builds, key=lambda build: build["createdAt"])
        yield "status", newest["status"]
        if error := newest.get("error"):
            yield "error", error
        yield "cpu", f"{newest['cpuCount']:g}"
        yield "memory", size(newest["memoryMB"] * 2**20)
        if disk := newest.get("diskSizeMB"):
            yield "disk", size(disk * 2**20)
    yield "created", _moment(template["createdAt"])
    if started := template.get("lastSpawnedAt"):
        yield "last started", _moment(started)
    yield "starts", str(template["spawnCount"])


def _moment(text: str) -> str:
    then = datetime.fromisoformat(text)
    return f"{then:%Y-%m-%d %H:%M:%S} ({age(then)} ago)"


def _report(progress: TemplateProgress) -> None:
    if common.json:
        emit_json(progress)
    else:
        note(f"template {progress.name}: {progress.status} {progress.error or ''}".rstrip())
    raise typer.Exit(1 if progress.status == "error" else 0)
