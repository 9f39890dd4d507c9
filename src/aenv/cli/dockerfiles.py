"""``build``: a template from a Dockerfile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from aenv.cli.apps import TEMPLATES, command, common, is_tty
from aenv.cli.outputs import emit_json, note
from aenv.cli.sessions import client, run

if TYPE_CHECKING:
    from aenv.sdk.building import BuildLog, BuiltTemplate

_COLOURS = {"warn": "\x1b[33m", "error": "\x1b[31m", "debug": "\x1b[2m"}

Cpu = Annotated[float | None, typer.Option("--cpu", min=0.1, help="vCPUs of its sandboxes.")]
Memory = Annotated[int | None, typer.Option("--memory", min=64, help="MiB of its sandboxes.")]
StartCmd = Annotated[
    str | None,
    typer.Option("--start-cmd", help="Runs in the template; 'image': its ENTRYPOINT and CMD."),
]
ReadyCmd = Annotated[
    str | None, typer.Option("--ready-cmd", help="Succeeds when the start command is ready.")
]


@command("build", TEMPLATES)
def build(
    path: Annotated[
        Path, typer.Argument(metavar="[PATH]", help="The context: files COPY may take.")
    ] = Path(),
    name: Annotated[
        str | None, typer.Option("-n", "--name", help="NAME or NAME:TAG; else the folder's name.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", help="The Dockerfile, else PATH/Dockerfile.")
    ] = None,
    build_arg: Annotated[
        list[str] | None, typer.Option("--build-arg", metavar="NAME=VALUE", help="An ARG's value.")
    ] = None,
    target: Annotated[str | None, typer.Option("--target", help="A stage.")] = None,
    tag: Annotated[list[str] | None, typer.Option("--tag", help="More tags.")] = None,
    no_cache: Annotated[bool, typer.Option("--no-cache", help="Do every step again.")] = False,
    host_registries: Annotated[
        bool,
        typer.Option(
            "--host-registries/--no-host-registries",
            help="Steps reach package registries as the server's host does.",
        ),
    ] = True,
    cpu: Cpu = None,
    memory: Memory = None,
    start_cmd: StartCmd = None,
    ready_cmd: ReadyCmd = None,
) -> None:
    """Build a template from a Dockerfile, without Docker. Ctrl-C ends it on the server, too."""
    from aenv.sdk.building import BuildOptions, DockerfileBuild, build_dockerfile

    work = DockerfileBuild.read(path, file, _arguments(build_arg or []), target)
    options = BuildOptions(
        name=name or _name_of(path),
        tags=tuple(tag or ()),
        cpu=cpu,
        memory_mb=memory,
        start_cmd=start_cmd,
        ready_cmd=ready_cmd,
        no_cache=no_cache,
        host_registries=host_registries,
    )

    async def go() -> BuiltTemplate:
        async with client() as server:
            return await build_dockerfile(server, work, options, show)

    report(run(go()))


def report(built: BuiltTemplate) -> None:
    if common.json:
        emit_json(built)
    else:
        note(f"template {built.name} is ready: aenv start {built.name}{_tag(built)}")


def show(line: BuildLog) -> None:
    """A line of the log, on stderr: JSON for machines, levels in colours on a terminal."""
    if common.json:
        from dataclasses import asdict
        from json import dumps

        note(dumps({"log": asdict(line)}, ensure_ascii=False))
    elif line.level != "debug":
        colour = _COLOURS.get(line.level, "") if is_tty(2) else ""
        text = "".join(c for c in line.message if c.isprintable() or c == "\t")
        note(f"{colour}{text}\x1b[0m" if colour else text)


def _tag(built: BuiltTemplate) -> str:
    return "" if "default" in built.tags else f":{built.tags[0]}"


def _arguments(given: list[str]) -> dict[str, str]:
    import os

    found = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not name or (not equals and name not in os.environ):
            raise typer.BadParameter(f"--build-arg {text}: write NAME=VALUE")
        found[name] = value if equals else os.environ[name]
    return found


def _name_of(path: Path) -> str:
    import re

    name = re.sub(r"[^a-z0-9_-]+", "-", path.resolve().name.lower()).strip("-_")
    if not name:
        raise typer.BadParameter("give the template a --name")
    return name
