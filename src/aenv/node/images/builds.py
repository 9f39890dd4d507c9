"""Run builds: one per template and host, whoever asks; others follow it."""

from __future__ import annotations

import asyncio
import contextlib
import os
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Callable

from aenv.models.errors import AenvError, HostSetupError
from aenv.models.folders import Folders
from aenv.models.registries import RegistryLogin
from aenv.models.templates import TemplateProgress, TemplateStatus
from aenv.node.images.progress import BuildState
from aenv.node.images.recipes import Recipe
from aenv.node.images.records import Shelf
from aenv.node.images.worker import BUSY, DONE, FAILED, build, command, environment

_POLL = 0.5
_BUILD_TIMEOUT = 3600
_END_TIMEOUT = 10
_AT_ONCE = 4

ShelfOf = Callable[[Recipe], Shelf]


class Builds:
    """The builds that this process has started or follows."""

    def __init__(self, folders: Folders, shelf_of: ShelfOf) -> None:
        self._folders = folders
        self._shelf_of = shelf_of
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._at_once = asyncio.Semaphore(_AT_ONCE)

    async def progress(self, recipe: Recipe) -> TemplateProgress:
        """While a build of ours is getting under way, what the one before left says nothing."""
        found = await asyncio.to_thread(self._progress, recipe)
        over = found.status in (TemplateStatus.ABSENT, TemplateStatus.ERROR)
        if over and self.is_building(recipe.name):
            return TemplateProgress(recipe.name, TemplateStatus.BUILDING, 0.0, "preparing")
        return found

    async def ensure(
        self,
        recipe: Recipe,
        wait: float,
        *,
        anew: bool = False,
        login: RegistryLogin | None = None,
    ) -> TemplateProgress:
        """Start or join, and wait up to ``wait`` seconds for the end. ``anew``: also if it is
        there, as the name may mean another image by now. ``login``: for the pull, if it is started.
        """
        if not anew and (now := await self.progress(recipe)).status is TemplateStatus.READY:
            return now
        task = self._tasks.get(recipe.name)
        if task is None or task.done():
            building = self._bring_about(recipe, login, anew=anew)
            task = asyncio.create_task(building, name=f"build-{recipe.name}")
            task.add_done_callback(_note_outcome)
            self._tasks[recipe.name] = task
        await self.wait(recipe, wait)
        return await self.progress(recipe)

    async def wait(self, recipe: Recipe, seconds: float) -> None:
        """Until a build of ours ends, if there is one."""
        if (task := self._tasks.get(recipe.name)) is not None:
            await asyncio.wait({task}, timeout=max(seconds, 0))

    def is_building(self, name: str) -> bool:
        task = self._tasks.get(name)
        return task is not None and not task.done()

    async def close(self) -> None:
        """End the builds that we run; whoever else waits for one takes it up."""
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        self._tasks.clear()

    def _state(self, recipe: Recipe) -> BuildState:
        return BuildState(self._shelf_of(recipe).root, recipe.name, recipe.key)

    def _progress(self, recipe: Recipe) -> TemplateProgress:
        if recipe.moves and (now := self._state(recipe).read()).status is not TemplateStatus.ABSENT:
            return now
        if self._shelf_of(recipe).find(recipe):
            return TemplateProgress(recipe.name, TemplateStatus.READY, 1.0, "done")
        return self._state(recipe).read()

    async def _bring_about(
        self, recipe: Recipe, login: RegistryLogin | None, *, anew: bool
    ) -> None:
        """Return when the image is there or the reason why not is in the progress file."""
        try:
            async with asyncio.timeout(_BUILD_TIMEOUT), self._at_once:
                while await self._attempt(recipe, login, anew=anew) == BUSY:
                    await self._follow(recipe)
                    anew = False
        except TimeoutError:
            message = f"the build of {recipe.name} did not end in {_BUILD_TIMEOUT} s"
            await asyncio.to_thread(self._fail, recipe, message)
        except (AenvError, OSError) as error:
            await asyncio.to_thread(self._fail, recipe, str(error))

    async def _follow(self, recipe: Recipe) -> None:
        state = self._state(recipe)
        while await asyncio.to_thread(state.is_held):  # noqa: ASYNC110 - another process's lock
            await asyncio.sleep(_POLL)

    async def _attempt(self, recipe: Recipe, login: RegistryLogin | None, *, anew: bool) -> int:
        shelf = self._shelf_of(recipe)
        if not recipe.isolated:
            return await asyncio.to_thread(build, recipe, shelf)
        if os.geteuid() != 0:
            await asyncio.to_thread(
                self._fail, recipe, f"building {recipe.name} needs root on Linux"
            )
            return FAILED
        return await self._run_worker(recipe, login, anew=anew)

    def _fail(self, recipe: Recipe, message: str) -> None:
        self._shelf_of(recipe).root.mkdir(parents=True, exist_ok=True)
        self._state(recipe).fail(message)

    async def _run_worker(self, recipe: Recipe, login: RegistryLogin | None, *, anew: bool) -> int:
        try:
            worker = await asyncio.create_subprocess_exec(
                *command(recipe, anew=anew),
                stdin=PIPE,
                stdout=DEVNULL,
                stderr=PIPE,
                env=environment(self._folders, recipe.name, login),
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise HostSetupError(
                f"{error.filename} is missing; run: apt-get install util-linux"
            ) from error
        try:
            assert worker.stderr is not None
            output = await worker.stderr.read()
            code = await worker.wait()
        except asyncio.CancelledError:
            await _end(worker)
            raise
        said = await asyncio.to_thread(self._progress, recipe)
        if code in {DONE, BUSY} or (code == FAILED and said.error):
            return code
        words = output.decode(errors="replace").strip()[-1000:]
        message = f"the build process ended with code {code}; build again, it resumes. {words}"
        await asyncio.to_thread(self._fail, recipe, message.strip())
        return FAILED


async def _end(worker: Process) -> None:
    """Close its standard input, which ends it and its namespace; kill it if that takes too long."""
    assert worker.stdin is not None
    worker.stdin.close()
    try:
        async with asyncio.timeout(_END_TIMEOUT):
            await worker.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            worker.kill()
        await worker.wait()


def _note_outcome(task: asyncio.Task[None]) -> None:
    """The outcome is in the progress file; a failed task nobody waits for is no surprise."""
    if not task.cancelled():
        task.exception()
