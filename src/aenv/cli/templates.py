"""``template``: what sandboxes start from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from aenv.cli import builds
from aenv.cli.apps import TEMPLATES, app, common, is_tty, new_app, subcommand
from aenv.cli.outputs import emit_json, note, size, table
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
        ("name", "id", "status", "cpu", "memory"),
        [
            (", ".join(t.names), t.id, t.status, f"{t.cpu:g}", size(t.memory_mb * 2**20))
            for t in found
        ],
    )


@subcommand(templates, "inspect")
def inspect(name: Name) -> None:
    """Show everything about a template."""

    async def fetch() -> dict[str, object]:
        async with client() as server:
            return dict((await server.call("GET", f"/templates/{name}")).json())

    found = run(fetch())
    if common.json:
        emit_json(found)
    else:
        table(("what", "value"), [(key, value) for key, value in found.items()])


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
        async with client() as server:
            await server.call("DELETE", f"/templates/{name}")

    run(remove())
    if common.json:
        emit_json({"deleted": name})


@subcommand(templates, "build")
def build(
    name: Annotated[str, typer.Argument(metavar="base|host")] = "base",
    detach: Annotated[bool, typer.Option("-d", "--detach", help="Only start it.")] = False,
) -> None:
    """Build a built-in template: joins a build that runs, goes on after one that failed."""

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
        async with client() as server:
            return await builds.follow(server, name)

    _report(run(work()))


def _report(progress: TemplateProgress) -> None:
    if common.json:
        emit_json(progress)
    else:
        note(f"template {progress.name}: {progress.status} {progress.error or ''}".rstrip())
    raise typer.Exit(1 if progress.status == "error" else 0)
