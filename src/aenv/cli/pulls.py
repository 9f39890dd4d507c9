"""``pull``: bring an image to where sandboxes start from."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated

import typer

from aenv.cli import builds
from aenv.cli.apps import TEMPLATES, command, common
from aenv.cli.dockerfiles import Cpu, Memory, ReadyCmd, StartCmd, report, show
from aenv.cli.outputs import emit_json, note
from aenv.cli.sessions import client, run

if TYPE_CHECKING:
    from aenv.models.templates import TemplateProgress
    from aenv.sdk.building import BuiltTemplate

_FILES = ("oci:", "docker-archive:")


@command("pull", TEMPLATES)
def pull(
    image: Annotated[
        str,
        typer.Argument(
            metavar="IMAGE",
            help="python:3.12, ghcr.io/a/b@sha256:…, oci:FOLDER[:TAG], docker-archive:FILE[:NAME]",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            "--name", help="What to call it here; of a registry's image, a template is made."
        ),
    ] = None,
    cpu: Cpu = None,
    memory: Memory = None,
    start_cmd: StartCmd = None,
    ready_cmd: ReadyCmd = None,
) -> None:
    """Fetch an image to start sandboxes from, also one whose tag has moved.

    With --cpu, --memory, --start-cmd or --ready-cmd a template --name is made of it.
    """
    from_files = image.startswith(_FILES)
    shaped = any(one is not None for one in (cpu, memory, start_cmd, ready_cmd))
    if shaped and name is None:
        raise typer.BadParameter("a template made of an image needs a --name")
    found = run(
        _from_files(image, None if shaped else name) if from_files else _from_registry(image)
    )
    if name is not None and (shaped or not from_files) and found.status == "ready":
        report(run(_template(found.name, name, cpu, memory, start_cmd, ready_cmd)))
        return
    if common.json:
        emit_json(found)
    else:
        note(f"image {found.name}: {found.status} {found.error or ''}".rstrip())
    raise typer.Exit(1 if found.status == "error" else 0)


async def _template(
    image: str,
    name: str,
    cpu: float | None,
    memory: int | None,
    start_cmd: str | None,
    ready_cmd: str | None,
) -> BuiltTemplate:
    """A build without steps."""
    from aenv.sdk.building import BuildOptions, build_image

    options = BuildOptions(
        name, cpu=cpu, memory_mb=memory, start_cmd=start_cmd, ready_cmd=ready_cmd
    )
    async with client() as server:
        return await build_image(server, image, options, show)


async def _from_registry(image: str) -> TemplateProgress:
    """By the server, with the credentials of its user."""
    from aenv.models.templates import TemplateStatus
    from aenv.sdk import builds as remote

    async with client() as server:
        now = await remote.pull(server, image)
        if now.status is not TemplateStatus.BUILDING:
            return now
        return await builds.follow(server, now.name, "pulling")


async def _from_files(source: str, name: str | None) -> TemplateProgress:
    """By this process: a server is never told to read files of its host."""
    from aenv.models.folders import Folders
    from aenv.models.templates import TemplateStatus
    from aenv.node.images import ImageStore
    from aenv.node.images.oci.archives import default_name, whole_source
    from aenv.sdk.local_servers import require_server_extra
    from aenv.store.settings import load_settings

    require_server_extra()
    source = whole_source(source)
    wanted = name or default_name(source)
    store = ImageStore(load_settings(Folders.resolve(), env=os.environ), None)
    with builds.bar(f"pulling {wanted}") as report:
        now = await store.ensure(wanted, wait=0.2, anew=True, source=source)
        while now.status is TemplateStatus.BUILDING:
            report(now.fraction, now.step)
            now = await store.follow(wanted, wait=0.5)
    return now
