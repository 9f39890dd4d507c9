"""``pause``, ``resume``, ``fork``."""

from __future__ import annotations

from typing import Annotated

import typer

from aenv.cli.apps import SANDBOXES, command, common
from aenv.cli.outputs import emit, emit_json, note
from aenv.cli.sessions import full_id, run, sandbox

Reference = Annotated[str, typer.Argument(metavar="ID", help="A sandbox id, or its beginning.")]
Timeout = Annotated[int, typer.Option("--timeout", min=0, help="Seconds to live from now.")]


@command("pause", SANDBOXES)
def pause(
    reference: Reference,
    no_memory: Annotated[
        bool, typer.Option("--no-memory", help="Keep the files alone; it boots on resume.")
    ] = False,
) -> None:
    """Let a sandbox rest on disk, processes and all, at no cost."""

    async def work() -> tuple[str, bool]:
        async with sandbox(reference) as found:
            return found.id, await found.pause(memory=not no_memory)

    _report(*run(work()), state="paused")


@command("resume", SANDBOXES)
def resume(
    reference: Reference,
    timeout: Timeout = 300,
    no_memory: Annotated[
        bool, typer.Option("--no-memory", help="Boot from the files, whatever was kept.")
    ] = False,
) -> None:
    """Let a paused sandbox go on where it was."""

    async def work() -> tuple[str, bool]:
        async with sandbox(reference) as found:
            resumed = await found.resume(timeout=timeout, memory=not no_memory)
            said = (await found.info()).note if resumed else None
            if said:
                note(f"aenv: {said}")
            return found.id, resumed

    _report(*run(work()), state="running")


@command("fork", SANDBOXES)
def fork(
    reference: Reference,
    count: Annotated[int, typer.Option("-n", "--count", min=1, max=20, help="How many.")] = 1,
    timeout: Timeout = 300,
    secrets: Annotated[
        bool, typer.Option("--secrets", help="Hand on the secret variables, too.")
    ] = False,
) -> None:
    """Make copies of a running sandbox that go on from this moment."""

    async def work() -> list[str]:
        async with sandbox(await full_id(reference)) as found:
            made = await found.fork(count, timeout=timeout, secrets=secrets)
            for one in made:
                await one.close()
            return [one.id for one in made]

    ids = run(work())
    if common.json:
        emit_json({"forks": ids})
        return
    for one in ids:
        emit(one)


def _report(sandbox_id: str, changed: bool, *, state: str) -> None:
    if common.json:
        emit_json({"id": sandbox_id, "state": state, "changed": changed})
        return
    emit(sandbox_id)
    if not changed:
        note(f"aenv: sandbox {sandbox_id} was {state} already")
