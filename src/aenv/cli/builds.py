"""Long work with its progress on the terminal; building templates."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from aenv.cli.apps import common, is_tty
from aenv.cli.outputs import note

if TYPE_CHECKING:
    from aenv.models.templates import TemplateProgress
    from aenv.sdk.client import Client

    Ask = Callable[[Client, str], Awaitable[TemplateProgress]]

Report = Callable[[float, str], None]
_POLL = 0.5


async def bring_about(client: Client, name: str) -> TemplateProgress:
    """Start or join the build and wait for its end. TemplateBuildError says why it failed."""
    from aenv.models.errors import TemplateBuildError
    from aenv.models.templates import TemplateStatus
    from aenv.sdk import builds

    with bar(f"building {name}") as report:
        async for now in builds.bring_about(client, name):
            report(now.fraction, now.step)
    if now.status is not TemplateStatus.READY:
        raise TemplateBuildError(
            f"the template {name} could not be built: {now.error or now.step}; "
            "the same command goes on where it stopped"
        )
    return now


async def follow(
    client: Client, name: str, verb: str = "building", *, ask: Ask | None = None
) -> TemplateProgress:
    """Watch a build that runs; what it came to. ``ask``: how far it is, else as of the node's."""
    from aenv.models.templates import TemplateStatus
    from aenv.sdk import builds

    ask = ask or builds.progress
    with bar(f"{verb} {name}") as report:
        while (now := await ask(client, name)).status is TemplateStatus.BUILDING:
            report(now.fraction, now.step)
            await asyncio.sleep(_POLL)
    return now


@contextmanager
def bar(title: str) -> Iterator[Report]:
    """A progress bar on a terminal, a line per step elsewhere."""
    if common.json:
        yield lambda fraction, step: None
    elif is_tty(2):
        with _bar(title) as report:
            yield report
    else:
        yield _lines(title)


@contextmanager
def _bar(title: str) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[step]}", markup=False),
    )
    with Progress(*columns, console=Console(file=sys.stderr), transient=True) as shown:
        task = shown.add_task(title, total=1.0, step="")
        yield lambda fraction, step: shown.update(task, completed=fraction, step=step)


def _lines(title: str) -> Report:
    last = ""

    def report(fraction: float, step: str) -> None:
        nonlocal last
        if step != last:
            last = step
            note(f"{title}: {fraction:4.0%} {step}")

    return report
