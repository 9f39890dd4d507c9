"""``cp``, ``upload``, ``download``: files between this machine and a sandbox."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from aenv.cli.apps import FILES, command, common, is_tty
from aenv.cli.outputs import emit_json, note
from aenv.cli.sandboxes import Reference
from aenv.cli.sessions import run, sandbox
from aenv.cli.shells import User

_REMOTE = re.compile(r"([a-z0-9]{2,20}):(.*)", re.DOTALL)
Report = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Place:
    """``sandbox`` None: this machine."""

    sandbox: str | None
    path: str

    @classmethod
    def parse(cls, text: str) -> Place:
        """``ID:/path``. A local name with a colon is written ``./name:with:colon``."""
        found = _REMOTE.fullmatch(text)
        return cls(found[1], found[2] or ".") if found else cls(None, text)


@command("cp", FILES)
def cp(
    source: Annotated[str, typer.Argument(metavar="SRC", help="A path, or ID:/path.")],
    destination: Annotated[str, typer.Argument(metavar="DST", help="A path, or ID:/path.")],
    recursive: Annotated[bool, typer.Option("-r", "--recursive", help="Copy folders.")] = False,
    user: User = None,
) -> None:
    """Copy files and folders; modes, times and symlinks are kept."""
    src, dst = Place.parse(source), Place.parse(destination)
    if Place(None, "-") in (src, dst):
        raise typer.BadParameter(
            "- is no file; pipe through 'aenv exec ID -- cat FILE', or name a file ./-"
        )
    if (src.sandbox is None) == (dst.sandbox is None):
        raise typer.BadParameter("one of SRC and DST must be in a sandbox (ID:/path)")
    if dst.sandbox is not None:
        if Path(src.path).is_dir() and not recursive:
            raise typer.BadParameter(f"{src.path} is a folder; copy it with -r")
        run(_upload(dst.sandbox, Path(src.path), dst.path, user=user))
    elif src.sandbox is not None:
        run(_download(src.sandbox, src.path, dst.path, recursive=recursive, user=user))


@command("upload", FILES)
def upload(
    reference: Reference,
    source: Annotated[Path, typer.Argument(metavar="FILE")],
    destination: Annotated[
        str | None, typer.Argument(metavar="PATH", help="Default: the user's home.")
    ] = None,
    user: User = None,
) -> None:
    """Copy a file or folder into a sandbox."""
    run(_upload(reference, source, destination or ".", user=user))


@command("download", FILES)
def download(
    reference: Reference,
    source: Annotated[str, typer.Argument(metavar="PATH")],
    destination: Annotated[
        str, typer.Argument(metavar="FILE", help="Default: the current directory.")
    ] = ".",
    user: User = None,
) -> None:
    """Copy a file or folder out of a sandbox."""
    run(_download(reference, source, destination, recursive=True, user=user))


async def _upload(reference: str, source: Path, destination: str, *, user: str | None) -> None:
    async with sandbox(reference) as found:
        with _progress(f"to {found.id}") as tally:
            await found.files.upload(source, destination, user=user, progress=tally.add)
    _done(tally, [])


async def _download(
    reference: str, source: str, destination: str, *, recursive: bool, user: str | None
) -> None:
    async with sandbox(reference) as found:
        if not recursive and (await found.files.stat(source, user=user)).is_dir:
            raise typer.BadParameter(f"{source} is a folder; copy it with -r")
        with _progress(f"from {found.id}") as tally:
            skipped = await found.files.download(source, destination, user=user, progress=tally.add)
    _done(tally, skipped)


class Tally:
    """Counts what was copied; ``show`` paints it."""

    def __init__(self, show: Report | None = None) -> None:
        self.files: set[str] = set()
        self.bytes = 0
        self._show = show

    def add(self, path: str, count: int) -> None:
        self.files.add(path)
        self.bytes += count
        if self._show:
            self._show(path, count)


@contextmanager
def _progress(title: str) -> Iterator[Tally]:
    """A moving line on a terminal, silence elsewhere."""
    if not is_tty(2) or common.json:
        yield Tally()
        return
    from rich.console import Console
    from rich.progress import (
        DownloadColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TransferSpeedColumn,
    )

    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        DownloadColumn(binary_units=True),
        TransferSpeedColumn(),
        TextColumn("{task.fields[path]}", markup=False),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as bar:
        task = bar.add_task(title, total=None, path="")
        yield Tally(lambda path, count: bar.update(task, advance=count, path=path[-60:]))


def _done(tally: Tally, skipped: list[str]) -> None:
    if common.json:
        emit_json({"files": len(tally.files), "bytes": tally.bytes, "skipped": skipped})
        return
    for one in skipped:
        note(f"aenv: left out: {one}")
