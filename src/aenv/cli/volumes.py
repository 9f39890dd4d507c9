"""``volume``: folders that outlive sandboxes, and the files in them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated

import typer

from aenv.cli.apps import SANDBOXES, app, common, is_tty, new_app, subcommand
from aenv.cli.outputs import age, emit, emit_json, size, table
from aenv.cli.sessions import run

if TYPE_CHECKING:
    from aenv.sdk import AsyncVolume, VolumeFile, VolumeInfo

volumes = new_app(help="Folders that outlive sandboxes: create, ls, inspect, cp, seal, rm.")
app.add_typer(volumes, name="volume", rich_help_panel=SANDBOXES)

Name = Annotated[str, typer.Argument(metavar="NAME", help="A volume's name or id.")]


@subcommand(volumes, "create")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME")],
    size_mb: Annotated[
        int | None, typer.Option("--size", min=1, help="The most it may hold, MiB.")
    ] = None,
) -> None:
    """Make a volume, and print its id; mount it with: aenv start -v NAME:/path."""

    async def work() -> VolumeInfo:
        from aenv.models.errors import ConflictError

        async with _opened(name, create=True, size_mb=size_mb) as (volume, existed):
            if existed:
                raise ConflictError(f"there is a volume {name!r} already")
            return await volume.info()

    made = run(work())
    if common.json:
        emit_json(made)
    else:
        emit(made.id)


@subcommand(volumes, "ls")
@subcommand(volumes, "list", hidden=True)
def ls(
    place: Annotated[
        str | None, typer.Argument(metavar="[NAME[:/PATH]]", help="Files of a volume.")
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Only names.")] = False,
) -> None:
    """List volumes, or the files in one."""
    if place is not None:
        _show_files(*_split(place), quiet=quiet)
        return

    async def work() -> list[VolumeInfo]:
        from aenv.sdk import AsyncVolume

        return await AsyncVolume.list(**common.server)

    found = run(work())
    if common.json:
        emit_json(found)
    elif quiet:
        for one in found:
            emit(one.name)
    else:
        rows = [(o.name, o.id, o.mode, _fill(o), _holders(o), age(o.created_at)) for o in found]
        table(("name", "id", "mode", "size", "sandboxes", "age"), rows)


@subcommand(volumes, "inspect")
def inspect(name: Name) -> None:
    """Show everything about a volume."""

    async def work() -> VolumeInfo:
        async with _opened(name) as (volume, _):
            return await volume.info()

    one = run(work())
    if common.json:
        emit_json(one)
        return
    rows = [
        ("name", one.name),
        ("id", one.id),
        ("mode", one.mode),
        ("size", _fill(one)),
        ("digest", one.digest or "-"),
        ("sandboxes", _holders(one)),
        ("created", f"{one.created_at:%Y-%m-%d %H:%M:%S} ({age(one.created_at)} ago)"),
    ]
    table(("what", "value"), rows)


@subcommand(volumes, "cp")
def cp(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A file, or NAME:/path.")],
    destination: Annotated[str, typer.Argument(metavar="DST", help="A file, or NAME:/path.")],
) -> None:
    """Copy one file into a volume or out of it; ./name:with:colon is a local one."""
    there, here = _remote(source), _remote(destination)
    if (there is None) == (here is None):
        raise typer.BadParameter("one of SRC and DST must be in a volume (NAME:/path)")
    if here is not None:
        local = Path(source)
        if not local.is_file():
            raise typer.BadParameter(f"{source} is no file")
        path = here[1] + local.name if here[1].endswith("/") else here[1]
        run(_put(here[0], path, local))
    elif there is not None:
        target = Path(destination)
        if target.is_dir():
            target /= PurePosixPath(there[1]).name
        run(_get(*there, target))


@subcommand(volumes, "seal")
def seal(name: Name) -> None:
    """Make a volume read-only for good, and print the digest to mount it by."""

    async def work() -> VolumeInfo:
        async with _opened(name) as (volume, _):
            return await volume.seal()

    sealed = run(work())
    if common.json:
        emit_json(sealed)
    else:
        emit(f"{sealed.name}@{sealed.digest}")


@subcommand(volumes, "rm")
@subcommand(volumes, "delete", hidden=True)
def rm(
    names: Annotated[list[str], typer.Argument(metavar="NAME...")],
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
) -> None:
    """Delete volumes with all in them; refused while a sandbox has one."""
    if is_tty(0) and not yes:
        typer.confirm(f"Delete {len(names)} volumes and all in them?", abort=True, err=True)

    async def work() -> None:
        for name in names:
            async with _opened(name) as (volume, _):
                await volume.delete()
            if not common.json:
                emit(name)

    run(work())
    if common.json:
        emit_json({"deleted": names})


def mounts(given: list[str] | None) -> dict[str, str]:
    """``-v NAME:/path`` → path and name; a digest in the name stays there."""
    found: dict[str, str] = {}
    for one in given or []:
        name, colon, path = one.rpartition(":/")
        if not colon or not name:
            raise typer.BadParameter(f"{one!r} is not NAME:/path", param_hint="--volume")
        found["/" + path] = name
    return found


@asynccontextmanager
async def _opened(
    name: str, *, create: bool = False, size_mb: int | None = None
) -> AsyncIterator[tuple[AsyncVolume, bool]]:
    """The volume, and whether it was there before."""
    from aenv.sdk import AsyncVolume

    known = [one.name for one in await AsyncVolume.list(**common.server)] if create else []
    found = await AsyncVolume.open(name, create=create, size_mb=size_mb, **common.server)
    try:
        yield found, name in known
    finally:
        await found.close()


async def _put(name: str, path: str, source: Path) -> None:
    async with _opened(name) as (volume, _):
        _told(await volume.write(path, source))


async def _get(name: str, path: str, target: Path) -> None:
    async with _opened(name) as (volume, _):
        written = await volume.download(path, target)
    if common.json:
        emit_json({"path": str(written)})


def _told(written: VolumeFile) -> None:
    if common.json:
        emit_json(written)


def _show_files(name: str, path: str, *, quiet: bool) -> None:
    async def work() -> list[VolumeFile]:
        async with _opened(name) as (volume, _):
            return await volume.files(path)

    found = run(work())
    if common.json:
        emit_json(found)
    elif quiet:
        for one in found:
            emit(one.path)
    else:
        rows = [
            (f"{o.mode:04o}", f"{o.uid}:{o.gid}", size(o.size), age(o.modified_at), _named(o))
            for o in found
        ]
        table(("mode", "owner", "size", "age", "path"), rows)


def _named(one: VolumeFile) -> str:
    if one.target is not None:
        return f"{one.path} -> {one.target}"
    return one.path + ("/" if one.type == "directory" else "")


def _fill(one: VolumeInfo) -> str:
    used = "?" if one.used_bytes is None else size(one.used_bytes)
    return f"{used} of {size(one.size_mb * 2**20)}"


def _holders(one: VolumeInfo) -> str:
    return " ".join(one.sandboxes) or "-"


def _remote(text: str) -> tuple[str, str] | None:
    """``NAME:/path``; None for a path of this machine."""
    name, colon, path = text.partition(":/")
    return (name, "/" + path) if colon and "/" not in name else None


def _split(text: str) -> tuple[str, str]:
    return _remote(text) or (text, "/")
