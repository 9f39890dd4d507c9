"""One build from its plan to the image of the template.

Steps that are cached are not done; the others run in one sandbox, whose disk is kept after each. In
the end a fresh sandbox is booted from that disk, so that nothing but the start command runs in the
template's memory.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace

from aenv.control.builds import keys
from aenv.control.builds.bases import Base, Bases
from aenv.control.builds.benches import Bench, Benches, Origin
from aenv.control.builds.contexts import Context
from aenv.control.builds.journals import Journal
from aenv.control.builds.keys import Stage
from aenv.control.builds.layers import Layers, Session
from aenv.control.builds.plans import DockerStage, Plan, Step
from aenv.control.builds.startups import Patience, start_up
from aenv.control.builds.steps import Label, Steps
from aenv.control.images import Images
from aenv.models.errors import InvalidRequestError
from aenv.models.sandboxes import DEFAULT_USER, Resources
from aenv.models.snapshots import SnapshotKind
from aenv.models.templates import GuestFacts, ImageFacts
from aenv.node.workbench import Surroundings
from aenv.store.records import SnapshotRecord


@dataclass(frozen=True, slots=True)
class Task:
    """A build as it is run."""

    team: str
    template_id: str
    plan: Plan
    resources: Resources
    journal: Journal
    around: Surroundings | None = None


@dataclass(slots=True)
class Progress:
    """Where a build is, for whoever tells of its failure: "base", a step's number from 1 (behind
    that of its stage, from 0, and a slash, if that is not the last), "finalize".
    """

    step: str = "base"


@dataclass(frozen=True, slots=True)
class Finished:
    """Where a stage has come to: its disk, what that is known by, and what it was built on."""

    origin: Origin
    key: str
    context: Context
    base: Base


@dataclass(frozen=True, slots=True)
class Walk:
    """One stage under way. ``prefix``: what its steps' numbers are told behind."""

    task: Task
    progress: Progress
    held: Session
    done: Mapping[str, Finished]
    name: str
    prefix: str

    def label(self, stage: Stage, of: int) -> Label:
        self.progress.step = f"{self.prefix}{stage.number}"
        return Label(self.progress.step, f"{self.name} {stage.number}/{of}")


@dataclass(frozen=True, slots=True)
class Made:
    """The image, which has no row yet."""

    snapshot: SnapshotRecord
    facts: GuestFacts
    image: ImageFacts | None


class Runs:
    def __init__(
        self,
        bases: Bases,
        benches: Benches,
        layers: Layers,
        steps: Steps,
        images: Images,
        patience: Patience,
    ) -> None:
        self._bases = bases
        self._benches = benches
        self._layers = layers
        self._steps = steps
        self._images = images
        self._patience = patience

    async def run(self, task: Task, progress: Progress) -> Made:
        """Raises AenvError; nothing but cached steps is left then."""
        if task.plan.host_registries:
            task = replace(task, around=await self._benches.surroundings(task.journal))
        with self._layers.session() as held:
            done: dict[str, Finished] = {}
            for number, stage in enumerate(task.plan.docker.stages if task.plan.docker else ()):
                done[stage.name] = await self._stage(task, stage, number, done, progress, held)
            progress.step = "base"
            start = await self._start(task, done, held)
            walk = Walk(task, progress, held, done, "builder", "")
            end = await self._walk(walk, start, task.plan.steps)
            progress.step = "finalize"
            return await self._finalize(task, end)

    async def tidy(self) -> None:
        """After a build: keep the cached steps within bounds."""
        await self._layers.shrink()

    async def _stage(
        self,
        task: Task,
        stage: DockerStage,
        number: int,
        done: Mapping[str, Finished],
        progress: Progress,
        held: Session,
    ) -> Finished:
        """A stage of a Dockerfile before its last."""
        progress.step = f"{number}/0"
        task.journal.say(f"[{stage.name}] FROM {stage.origin}", step=progress.step)
        start = done.get(stage.origin)
        if start is None:
            base = await self._bases.of_docker(task.team, stage.origin, task.journal)
            start = await self._provision(task, base, held)
        walk = Walk(task, progress, held, done, stage.name, f"{number}/")
        return await self._walk(walk, start, stage.steps)

    async def _start(self, task: Task, done: Mapping[str, Finished], held: Session) -> Finished:
        plan = task.plan
        named = plan.docker.origin if plan.docker else plan.image or plan.template
        task.journal.say(f"[base] FROM {named}", step="base")
        if named is not None and named in done:
            return done[named]
        base = await self._bases.find(task.team, plan, task.journal)
        return await self._provision(task, base, held)

    async def _provision(self, task: Task, base: Base, held: Session) -> Finished:
        """Give an image its user."""
        origin = Origin(base.template, base.snapshot)
        if not base.bare:
            return Finished(origin, base.key, base.context, base)
        key = keys.root(task.team, base.key, DEFAULT_USER)
        async with self._layers.turn(key):
            if (found := await held.furthest([key])) is not None:
                return Finished(origin.at(found.snapshot_id), key, base.context, base)
            async with self._bench(task, origin) as bench:
                await bench.work.make_user(DEFAULT_USER)
                kept = await self._kept(task, bench, key, held, origin)
        return Finished(kept, key, base.context, base)

    async def _walk(self, walk: Walk, start: Finished, steps: Sequence[Step]) -> Finished:
        """Do what is not cached; where the disk is then."""
        task, held = walk.task, walk.held
        before = {name: one.key for name, one in walk.done.items()}
        force = task.plan.force
        stages = keys.chain(start.key, start.context, steps, force=force, stages_before=before)
        done, layer = await _cached(stages, held)
        origin = start.origin.at(layer) if layer else start.origin
        async with AsyncExitStack() as open_bench:
            bench: Bench | None = None
            for stage in stages:
                label = walk.label(stage, len(stages))
                cached = stage.number <= done
                title = f"[{label.title}] {stage.step.title}"
                task.journal.say(f"CACHED {title}" if cached else title, step=label.step)
                if cached or not stage.step.makes_layer:
                    continue
                async with self._layers.turn(stage.key):
                    fresh = bench is not None or not stage.cacheable
                    found = None if fresh else await held.furthest([stage.key])
                    if found is not None:
                        origin = origin.at(found.snapshot_id)
                        continue
                    if bench is None:
                        bench = await open_bench.enter_async_context(self._bench(task, origin))
                    await self._do(walk, bench, stage, label)
                    origin = await self._kept(task, bench, stage.key, held, origin)
        if not stages:
            return start
        return replace(start, origin=origin, key=stages[-1].key, context=stages[-1].after)

    async def _do(self, walk: Walk, bench: Bench, stage: Stage, label: Label) -> None:
        task, docker = walk.task, stage.step.docker
        if docker is None or docker.stage is None:
            await self._steps.do(bench, stage, task.team, task.journal, label)
            return
        other = walk.done[docker.stage]
        name = keys.root(task.team, "files", other.key, stage.step.args[0])
        if not self._steps.has(task.team, name):
            async with self._bench(task, other.origin) as source:
                await self._steps.take(source, stage, task.team, name)
        await self._steps.copy(bench, stage, task.team, name)

    async def _finalize(self, task: Task, end: Finished) -> Made:
        image = _image(task.plan, end.base.image)
        facts = _facts(task.plan, end, image)
        idle = GuestFacts(facts.user, facts.workdir, facts.env)
        task.journal.say("[finalize] Making the template's image", step="finalize")
        opened = self._benches.open(end.origin, task.resources, task.journal, idle)
        async with AsyncExitStack() as undo:
            async with opened as bench:
                await bench.work.declare(facts)
                await start_up(bench, facts, task.journal, self._patience)
                kept, record = await self._benches.keep(
                    bench, task.team, SnapshotKind.TEMPLATE, task.template_id
                )
                undo.callback(self._images.drop_unrecorded, kept.id)
            undo.pop_all()
        return Made(record, facts, image)

    def _bench(self, task: Task, origin: Origin) -> AbstractAsyncContextManager[Bench]:
        facts = GuestFacts(user="root")
        return self._benches.open(origin, task.resources, task.journal, facts, task.around)

    async def _kept(
        self, task: Task, bench: Bench, key: str, held: Session, before: Origin
    ) -> Origin:
        """Keep the disk under its key."""
        image, record = await self._benches.keep(
            bench, task.team, SnapshotKind.LAYER, parent=before.snapshot
        )
        try:
            await held.add(key, image, record)
        except BaseException:
            self._images.drop_unrecorded(image.id)
            raise
        return bench.origin.at(image.id)


def _facts(plan: Plan, end: Finished, image: ImageFacts | None) -> GuestFacts:
    """What the template's guests are told. A build that names no commands inherits those below."""
    own = end.base.start or GuestFacts()
    named = bool(plan.start_cmd or plan.ready_cmd or plan.start_image)
    start, words = plan.start_cmd, False
    if plan.start_image and start is None:
        if image is None or not (image.entrypoint or image.cmd):
            raise InvalidRequestError("the image has no ENTRYPOINT or CMD to start")
        start, words = shlex.join((*image.entrypoint, *image.cmd)), True
    return GuestFacts(
        user=end.context.user,
        workdir=end.context.workdir,
        env=dict(end.context.env),
        start_cmd=start if named else own.start_cmd,
        ready_cmd=plan.ready_cmd if named else own.ready_cmd,
        start_exec=words if named else own.start_exec,
    )


def _image(plan: Plan, below: ImageFacts | None) -> ImageFacts | None:
    """What the image says of itself: a Dockerfile's ENTRYPOINT forgets the CMD below."""
    if plan.docker is None:
        return below
    below, own = below or ImageFacts(), plan.docker.image
    cmd = own.cmd if own.entrypoint else own.cmd or below.cmd
    ports = tuple(dict.fromkeys((*below.ports, *own.ports)))
    return replace(below, entrypoint=own.entrypoint or below.entrypoint, cmd=cmd, ports=ports)


async def _cached(stages: Sequence[Stage], held: Session) -> tuple[int, str | None]:
    """The number of the last step that need not be done, and the disk after it."""
    usable = [one for one in stages if one.cacheable and one.step.makes_layer]
    last = await held.furthest([one.key for one in usable])
    if last is None:
        return 0, None
    return next(one.number for one in usable if one.key == last.key), last.snapshot_id
