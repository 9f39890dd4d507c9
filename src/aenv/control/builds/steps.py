"""Doing one step of a build in a sandbox."""

from __future__ import annotations

from contextlib import aclosing

from aenv.control.builds.archives import Archives, chunks
from aenv.control.builds.benches import Bench
from aenv.control.builds.journals import Journal, Lines
from aenv.control.builds.keys import Stage
from aenv.control.builds.plans import StepType
from aenv.models.errors import TemplateBuildError
from aenv.node.workbench import CopyTarget, Ended, GuestCommand, StepError

RUN_TIMEOUT = 3600.0


class Steps:
    def __init__(self, archives: Archives) -> None:
        self._archives = archives

    async def do(self, bench: Bench, stage: Stage, team: str, journal: Journal, of: int) -> None:
        """TemplateBuildError with the words that the caller is shown."""
        if stage.step.type is StepType.RUN:
            await self._run(bench, stage, journal, of)
        elif stage.step.type is StepType.COPY:
            await self._copy(bench, stage, team)
        elif stage.step.type is StepType.WORKDIR:
            await self._workdir(bench, stage)

    async def _run(self, bench: Bench, stage: Stage, journal: Journal, of: int) -> None:
        command, *user = stage.step.args
        context = stage.before
        asked = GuestCommand(
            command,
            user=(user[0] if user else "") or context.user,
            cwd=context.workdir,
            env={**bench.env, **context.env},
            timeout=RUN_TIMEOUT,
        )
        try:
            ended = await follow(
                bench, asked, journal, str(stage.number), f"builder {stage.number}/{of}"
            )
        except StepError as error:
            raise TemplateBuildError(
                f"failed to run command '{command}': command failed: {error}"
            ) from error
        if ended.exit_code:
            raise TemplateBuildError(f"failed to run command '{command}': {ended.status}")

    async def _copy(self, bench: Bench, stage: Stage, team: str) -> None:
        source, target, owner, mode = (*stage.step.args, "", "")[:4]
        where = stage.before.workdir
        path = target if target.startswith(("/", "~")) or not where else f"{where}/{target}"
        place = CopyTarget(source, path, stage.before.user, owner, mode)
        assert stage.step.files_hash is not None
        with self._archives.using(team, stage.step.files_hash) as archive:
            size = archive.stat().st_size
            try:
                await bench.work.unpack(chunks(archive), size, place)
            except StepError as error:
                raise TemplateBuildError(
                    f"failed to copy '{source}' to '{target}': {error}"
                ) from error

    async def _workdir(self, bench: Bench, stage: Stage) -> None:
        path = stage.after.workdir
        try:
            await bench.work.make_folder(path, stage.before.user)
        except StepError as error:
            raise TemplateBuildError(f"failed to make folder '{path}': {error}") from error


async def follow(
    bench: Bench,
    command: GuestCommand,
    journal: Journal,
    step: str,
    title: str,
    levels: tuple[str, str] = ("info", "warn"),
) -> Ended:
    """Run a command to its end, what it writes into the log."""
    streams = {
        "stdout": Lines(journal, step, f"[{title}] [stdout]: ", levels[0]),
        "stderr": Lines(journal, step, f"[{title}] [stderr]: ", levels[1]),
    }
    ended = Ended(-1, "it was lost")
    async with aclosing(bench.work.run(command)) as events:
        async for event in events:
            if isinstance(event, Ended):
                ended = event
            else:
                streams[event.stream].write(event.data)
    for lines in streams.values():
        lines.close()
    return ended
