"""What runs in a finished template: its start command, until its ready command succeeds."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from dataclasses import dataclass

from aenv.control.builds.benches import Bench
from aenv.control.builds.journals import Journal, Lines
from aenv.control.builds.steps import follow
from aenv.models.errors import TemplateBuildError
from aenv.models.templates import GuestFacts
from aenv.node.workbench import Ended, GuestCommand, StepError

STEP = "finalize"
QUIET = ("debug", "debug")


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: ``settle`` for a start command without a ready command; ``every`` between two tries
    of the ready command, ``most`` for all of them.
    """

    settle: float = 20.0
    every: float = 2.0
    most: float = 600.0


async def start_up(bench: Bench, facts: GuestFacts, journal: Journal, patience: Patience) -> None:
    """Return when it is ready, with the start command running on. TemplateBuildError."""
    started: asyncio.Task[Ended | None] | None = None
    if facts.start:
        journal.say(f"[finalize] Starting: {facts.start_cmd}", step=STEP)
        started = asyncio.create_task(_start(bench, facts, facts.start, journal))
    ready = asyncio.create_task(_ready(bench, facts, journal, patience))
    try:
        waiting = {ready} | ({started} if started else set())
        while ready in waiting:
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if started in done:
                assert started is not None
                ended = started.result()
                if ended is not None and ended.exit_code:
                    raise TemplateBuildError(
                        f"the start command '{facts.start_cmd}' failed: {ended.status}"
                    )
        await ready
    finally:
        for task in (started, ready):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(t for t in (started, ready) if t), return_exceptions=True)


async def _start(
    bench: Bench, facts: GuestFacts, command: str | tuple[str, ...], journal: Journal
) -> Ended | None:
    """How it ended, if it does: a program that goes into the background ends well at once."""
    lines = {
        "stdout": Lines(journal, STEP, "[start] [stdout]: ", "info"),
        "stderr": Lines(journal, STEP, "[start] [stderr]: ", "warn"),
    }
    asked = GuestCommand(command, user=facts.user, cwd=facts.workdir)
    try:
        async with aclosing(bench.work.spawn(asked)) as events:
            async for event in events:
                if isinstance(event, Ended):
                    return event
                lines[event.stream].write(event.data)
    except StepError as error:
        raise TemplateBuildError(f"failed to start '{facts.start_cmd}': {error}") from error
    finally:
        for one in lines.values():
            one.close()
    return None


async def _ready(bench: Bench, facts: GuestFacts, journal: Journal, patience: Patience) -> None:
    if not facts.ready_cmd:
        await asyncio.sleep(patience.settle if facts.start_cmd else 0)
        return
    journal.say(f"[finalize] Waiting for it to be ready: {facts.ready_cmd}", step=STEP)
    deadline = time.monotonic() + patience.most
    while True:
        asked = GuestCommand(
            facts.ready_cmd,
            user=facts.user,
            cwd=facts.workdir,
            timeout=max(1.0, deadline - time.monotonic()),
        )
        try:
            said = await follow(bench, asked, journal, STEP, "ready", QUIET)
            if said.exit_code == 0:
                journal.say("[finalize] It is ready", step=STEP)
                return
            why = said.status
        except StepError as error:
            why = str(error)
        if time.monotonic() + patience.every > deadline:
            raise TemplateBuildError(
                f"the ready command '{facts.ready_cmd}' did not succeed within "
                f"{patience.most:g} s: {why}"
            )
        await asyncio.sleep(patience.every)
