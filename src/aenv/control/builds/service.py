"""Builds as callers see them: asked for, started, followed, cancelled, found after a restart.

A build that is asked for waits until it is told its steps; then it runs in a task of its own, a few
at a time. Its end is one write: the image's row, the build's, and its tags, or none of them.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace

import structlog
from sqlalchemy import Connection

from aenv.control.builds import plans
from aenv.control.builds.journals import Journal, JournalEntry, Journals
from aenv.control.builds.library import BuiltTemplate, Library, check_tags, parse
from aenv.control.builds.plans import Plan
from aenv.control.builds.runs import Made, Progress, Runs, Task
from aenv.control.clocks import Clock
from aenv.control.idling import Activity
from aenv.control.images import Images
from aenv.control.templates import BUILT_IN
from aenv.models.errors import (
    AenvError,
    CapacityError,
    ConflictError,
    InvalidRequestError,
    NotFoundError,
)
from aenv.models.ids import new_object_id
from aenv.models.sandboxes import Resources
from aenv.store import builds as rows
from aenv.store import snapshots
from aenv.store.builds import BuildRecord as BuildRecord
from aenv.store.builds import BuildStatus as BuildStatus
from aenv.store.builds import TemplateRecord as TemplateRecord
from aenv.store.catalog import Catalog

log = structlog.get_logger()
MOST_WAITING = 64
KEPT_BUILDS = 50
"""Of one template, with their logs; those that a tag names stay besides."""
CLOSE_GRACE = 30.0


@dataclass(frozen=True, slots=True)
class NewBuild:
    """``name``: ``[team/]name[:tag]``; without any tag the build is ``default``."""

    name: str
    resources: Resources
    tags: Sequence[str] = ()


class Builds:
    """``at_once``: how many run; the others wait. ``host_registries``: whether steps are given the
    host's way to its registries: always, never, or where a build asks.
    """

    def __init__(
        self,
        catalog: Catalog,
        library: Library,
        journals: Journals,
        runs: Runs,
        images: Images,
        activity: Activity,
        clock: Clock,
        *,
        at_once: int = 2,
        host_registries: str = "ask",
    ) -> None:
        self._catalog = catalog
        self._library = library
        self._runs = runs
        self._images = images
        self._activity = activity
        self._clock = clock
        self._room = asyncio.Semaphore(at_once)
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._calls_off: dict[str, str] = {}
        self._closed = False
        self._host_registries = host_registries
        self.journals = journals

    async def open(self) -> None:
        """Builds that a stopped server left half done have failed."""
        now = self._clock.wall()

        def settle(db: Connection) -> None:
            for record in rows.unfinished(db):
                rows.advance(
                    db,
                    record,
                    BuildStatus.ERROR,
                    message="the server was stopped during the build; build again, "
                    "steps that were done are cached",
                    finished_at=now,
                )

        await self._catalog.write(settle)
        await self.journals.keep_only(await self._catalog.read(rows.ids))

    async def close(self) -> None:
        self._closed = True
        for build_id in list(self._tasks):
            self._call_off(build_id, "the server was stopped during the build; build again")
        if self._tasks:
            await asyncio.wait(set(self._tasks.values()), timeout=CLOSE_GRACE)

    async def request(self, team: str, new: NewBuild) -> tuple[TemplateRecord, BuildRecord]:
        """A build that waits for its steps, of a new template or of one that there is.

        InvalidRequestError, ConflictError when the name is another noun's.
        """
        parsed = parse(team, new.name)
        if parsed is None or parsed.team != team:
            raise InvalidRequestError(
                f"name: {new.name[:255]!r} is no name or name:tag of small letters, digits, dashes "
                "and underscores"
            )
        if parsed.name in BUILT_IN:
            raise ConflictError(f"name: {parsed.name!r} is a template of ours; choose another")
        tags = list(dict.fromkeys([*([parsed.tag] if parsed.tag else []), *new.tags]))
        tags = tags or ["default"]
        check_tags(tags)
        now = self._clock.wall()

        def write(db: Connection) -> tuple[TemplateRecord, BuildRecord, list[str]]:
            found = rows.template_named(db, team, parsed.name) or rows.template(db, parsed.name)
            if found is None or found.team != team:
                if snapshots.named(db, team, parsed.name):
                    raise ConflictError(f"name: {parsed.name!r} is the name of a snapshot")
                found = TemplateRecord(new_object_id("t"), team, parsed.name, now, now)
                rows.add_template(db, found)
            build = BuildRecord(
                id=str(uuid.uuid4()),
                template_id=found.id,
                version=1,
                status=BuildStatus.WAITING,
                resources=new.resources,
                created_at=now,
                tags=tuple(tags),
            )
            rows.add(db, build)
            return found, build, rows.forget_oldest(db, found.id, KEPT_BUILDS)

        found, build, forgotten = await self._catalog.write(write)
        for build_id in forgotten:
            await self.journals.remove(build_id)
        self._library.names[found.id] = found.name
        return found, build

    async def start(self, team: str, template_id: str, build_id: str, plan: Plan) -> None:
        """Tell a build its steps. ConflictError when it was told before."""
        if self._closed:
            raise CapacityError("the server is shutting down", retry_after=5)
        plans.check(plan)
        inherits = {"always": True, "never": False}
        plan = replace(
            plan,
            host_registries=inherits.get(self._host_registries, plan.host_registries),
        )
        _, build = await self.get(team, template_id, build_id)
        if build.status is not BuildStatus.WAITING or build.started_at is not None:
            raise ConflictError(f"build {build_id} was started already")
        if len(self._tasks) >= MOST_WAITING:
            raise CapacityError(f"{MOST_WAITING} builds wait already", retry_after=30)
        begun = await self._advance(build, BuildStatus.WAITING, started_at=self._clock.wall())
        journal = self.journals.open(build_id)
        task = Task(team, template_id, plan, build.resources, journal)
        self._tasks[build_id] = asyncio.create_task(
            self._run(begun, task), name=f"build {build_id}"
        )
        self._tasks[build_id].add_done_callback(lambda _: self._tasks.pop(build_id, None))

    async def get(
        self, team: str, template_id: str, build_id: str
    ) -> tuple[BuiltTemplate, BuildRecord]:
        """NotFoundError."""
        template = await self._library.own(team, template_id)
        build = next((b for b in template.builds if b.id == build_id), None) if template else None
        if template is None or build is None:
            raise NotFoundError(f"template {template_id[:64]!r} has no build {build_id[:64]!r}")
        return template, build

    async def log(self, build_id: str, *, level: str | None = None) -> list[JournalEntry]:
        return await self.journals.read(build_id, level=level)

    async def cancel(self, team: str, template_id: str, build_id: str) -> None:
        """End it if it is not over. NotFoundError."""
        _, build = await self.get(team, template_id, build_id)
        if task := self._call_off(build_id, "the build was cancelled"):
            await asyncio.wait({task}, timeout=CLOSE_GRACE)
        elif build.status in rows.UNFINISHED:
            await self._fail(build, Progress(), "the build was cancelled")

    async def delete(self, team: str, reference: str) -> bool:
        """A template with its builds; those under way are cancelled. False if there is none."""
        if (found := await self._library.own(team, reference)) is None:
            return False
        running = [self._call_off(b.id, "its template was deleted") for b in found.builds]
        if waiting := {task for task in running if task is not None}:
            await asyncio.wait(waiting, timeout=CLOSE_GRACE)
        for build_id in await self._library.remove(found.record.id):
            await self.journals.remove(build_id)
        return True

    def _call_off(self, build_id: str, why: str) -> asyncio.Task[None] | None:
        if (task := self._tasks.get(build_id)) is not None:
            self._calls_off.setdefault(build_id, why)
            task.cancel()
        return task

    async def _run(self, build: BuildRecord, task: Task) -> None:
        progress = Progress()
        self._activity.begin()
        try:
            async with self._room:
                build = await self._advance(build, BuildStatus.BUILDING)
                made = await self._runs.run(task, progress)
                await self._finish(build, made, task.journal)
        except asyncio.CancelledError:
            why = self._calls_off.get(build.id, "the build was interrupted")
            await self._failed(build, progress, task.journal, why)
        except AenvError as error:
            await self._failed(build, progress, task.journal, str(error))
        except Exception as error:
            log.exception("a build failed unexpectedly", build_id=build.id)
            await self._failed(build, progress, task.journal, f"the server failed: {error!r}")
        finally:
            self._calls_off.pop(build.id, None)
            try:
                if not self._closed:
                    await self._runs.tidy()
            finally:
                self._activity.finish()

    async def _finish(self, build: BuildRecord, made: Made, journal: Journal) -> None:
        now = self._clock.wall()

        def write(db: Connection) -> list[str]:
            snapshots.add(db, made.snapshot)
            done = rows.advance(
                db,
                build,
                BuildStatus.READY,
                snapshot_id=made.snapshot.id,
                facts=made.facts,
                image=made.image,
                finished_at=now,
            )
            rows.tag(db, done, build.tags, now)
            loose = rows.forget_untagged(db, build.template_id)
            snapshots.remove(db, loose)
            return loose

        journal.say("[finalize] The template is ready", step="finalize")
        try:
            loose = await self._catalog.write(write)
            await self._catalog.sync()
        except BaseException:
            self._images.drop_unrecorded(made.snapshot.id)
            raise
        for snapshot_id in loose:
            self._images.drop(snapshot_id)

    async def _failed(
        self, build: BuildRecord, progress: Progress, journal: Journal, why: str
    ) -> None:
        journal.say(why, level="error", step=progress.step)
        await self._fail(build, progress, why)

    async def _fail(self, build: BuildRecord, progress: Progress, why: str) -> None:
        """Unless it is over: a write that was called off may have been done all the same. A
        template that was never built goes on to exist, so that its name tells what failed.
        """
        now = self._clock.wall()

        def write(db: Connection) -> None:
            found = rows.get(db, build.id)
            if found is not None and found.status in rows.UNFINISHED:
                end = {"message": why, "step": progress.step, "finished_at": now}
                rows.advance(db, found, BuildStatus.ERROR, **end)

        try:
            await self._catalog.write(write)
        except AenvError as error:
            log.warning("the end of a build is not recorded", build_id=build.id, error=repr(error))

    async def _advance(
        self, build: BuildRecord, status: BuildStatus, **changes: object
    ) -> BuildRecord:
        return await self._catalog.write(lambda db: rows.advance(db, build, status, **changes))
