"""Doing one step of a build in a sandbox."""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass

from aenv.control.builds.archives import Archives, chunks
from aenv.control.builds.benches import Bench
from aenv.control.builds.journals import Journal, Lines
from aenv.control.builds.keys import Stage
from aenv.control.builds.plans import DockerStep, StepType
from aenv.models.errors import AenvError, NotFoundError, TemplateBuildError
from aenv.node.workbench import CopyTarget, Ended, GuestCommand, StepError

RUN_TIMEOUT = 3600.0


@dataclass(frozen=True, slots=True)
class Label:
    """What a step is called in the log."""

    step: str
    title: str


class Steps:
    def __init__(self, archives: Archives) -> None:
        self._archives = archives

    async def do(
        self, bench: Bench, stage: Stage, team: str, journal: Journal, label: Label
    ) -> None:
        """TemplateBuildError with the words that the caller is shown."""
        if stage.step.type is StepType.RUN:
            await self._run(bench, stage, team, journal, label)
        elif stage.step.type is StepType.COPY:
            assert stage.step.files_hash is not None
            await self.copy(bench, stage, team, stage.step.files_hash)
        elif stage.step.type is StepType.WORKDIR:
            await self._workdir(bench, stage)

    def has(self, team: str, archive_hash: str) -> bool:
        return self._archives.has(team, archive_hash)

    async def copy(self, bench: Bench, stage: Stage, team: str, archive_hash: str) -> None:
        """Unpack an archive where a COPY wants it."""
        source, target, owner, mode = (*stage.step.args, "", "")[:4]
        here = stage.before.workdir
        path = target if target.startswith("~") or not here else posixpath.join(here, target)
        if stage.step.docker is not None:
            owner = owner or "0:0"
        place = CopyTarget(source, path, stage.before.user, owner, mode)
        with self._archives.using(team, archive_hash) as archive:
            size = archive.stat().st_size
            try:
                await bench.work.unpack(chunks(archive), size, place)
            except StepError as error:
                raise TemplateBuildError(
                    f"failed to copy '{source}' to '{target}': {error}"
                ) from error

    async def take(self, bench: Bench, stage: Stage, team: str, archive_hash: str) -> None:
        """Keep what a COPY names of another stage's files as an archive."""
        source = stage.step.args[0]
        ticket = self._archives.ticket(team, archive_hash)
        try:
            async with aclosing(bench.work.pack(source)) as packed:
                await self._archives.receive(ticket, None, packed)
        except StepError as error:
            raise TemplateBuildError(f"failed to copy '{source}' of a stage: {error}") from error

    async def _run(
        self, bench: Bench, stage: Stage, team: str, journal: Journal, label: Label
    ) -> None:
        command, *user = stage.step.args
        docker, context = stage.step.docker or DockerStep(), stage.before
        asked = GuestCommand(
            docker.argv or command,
            user=(user[0] if user else "") or context.user,
            cwd=context.workdir,
            env={**bench.env, **context.environment(stage.step)},
            timeout=RUN_TIMEOUT,
        )
        try:
            async with self._cached_folders(bench, docker.caches, asked.user, team, journal):
                ended = await follow(bench, asked, journal, label.step, label.title)
                if ended.exit_code:
                    raise TemplateBuildError(f"failed to run command '{command}': {ended.status}")
        except StepError as error:
            raise TemplateBuildError(
                f"failed to run command '{command}': command failed: {error}"
            ) from error

    @asynccontextmanager
    async def _cached_folders(
        self, bench: Bench, folders: Sequence[str], user: str, team: str, journal: Journal
    ) -> AsyncIterator[None]:
        """Folders that go from one build to the next, and are not in the image."""
        for folder in folders:
            await bench.work.cover(folder, user)
            name = _cache_name(folder)
            if self._archives.has(team, name):
                with suppress(NotFoundError), self._archives.using(team, name) as archive:
                    place = CopyTarget(folder, folder, "root", "=")
                    await bench.work.unpack(chunks(archive), archive.stat().st_size, place)
        yield
        for folder in folders:
            try:
                async with aclosing(bench.work.pack(folder)) as packed:
                    ticket = self._archives.ticket(team, _cache_name(folder))
                    await self._archives.receive(ticket, None, packed)
            except (AenvError, OSError) as error:
                journal.say(f"the cache {folder} is not kept: {error}", level="warn")
            await bench.work.uncover(folder)

    async def _workdir(self, bench: Bench, stage: Stage) -> None:
        path = stage.after.workdir
        of_docker = stage.step.docker is not None
        user = "root" if of_docker else stage.before.user
        try:
            await bench.work.make_folder(path, user, keep=of_docker)
        except StepError as error:
            raise TemplateBuildError(f"failed to make folder '{path}': {error}") from error


def _cache_name(folder: str) -> str:
    """What an archive of a cached folder is kept under: no file has this hash."""
    return hashlib.sha256(f"cache:{folder}".encode()).hexdigest()


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
