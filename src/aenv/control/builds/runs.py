"""One build from its plan to the image of the template.

Steps that are cached are not done; the others run in one sandbox, whose disk is kept after each. In
the end a fresh sandbox is booted from that disk, so that nothing but the start command runs in the
template's memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass, replace

from aenv.control.builds import keys
from aenv.control.builds.bases import Base, Bases
from aenv.control.builds.benches import Bench, Benches, Origin
from aenv.control.builds.contexts import Context
from aenv.control.builds.journals import Journal
from aenv.control.builds.keys import Stage
from aenv.control.builds.layers import Layers, Session
from aenv.control.builds.plans import Plan
from aenv.control.builds.startups import Patience, start_up
from aenv.control.builds.steps import Steps
from aenv.control.images import Images
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
    """Where a build is, for whoever tells of its failure: "base", a number from 1, "finalize"."""

    step: str = "base"


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
        base = await self._bases.find(task.team, task.plan, task.journal)
        task.journal.say(f"[base] FROM {task.plan.image or task.plan.template}", step="base")
        with self._layers.session() as held:
            origin, key = await self._provision(task, base, held)
            stages = keys.chain(key, base.context, task.plan.steps, force=task.plan.force)
            origin = await self._walk(task, origin, stages, progress, held)
            progress.step = "finalize"
            context = stages[-1].after if stages else base.context
            made = await self._finalize(task, base, origin, context)
        await self._layers.shrink()
        return made

    async def _provision(self, task: Task, base: Base, held: Session) -> tuple[Origin, str]:
        """Give an image its user."""
        origin = Origin(base.template, base.snapshot)
        if not base.bare:
            return origin, base.key
        key = keys.root(task.team, base.key, DEFAULT_USER)
        async with self._layers.turn(key):
            if (found := await held.furthest([key])) is not None:
                return origin.at(found.snapshot_id), key
            async with self._bench(task, origin) as bench:
                await bench.work.make_user(DEFAULT_USER)
                return await self._kept(task, bench, key, held), key

    async def _walk(
        self,
        task: Task,
        origin: Origin,
        stages: Sequence[Stage],
        progress: Progress,
        held: Session,
    ) -> Origin:
        """Do what is not cached; where the disk is then."""
        done, layer = await _cached(stages, held)
        origin = origin.at(layer) if layer else origin
        async with AsyncExitStack() as open_bench:
            bench: Bench | None = None
            for stage in stages:
                progress.step = str(stage.number)
                title = f"[builder {stage.number}/{len(stages)}] {stage.step.title}"
                cached = stage.number <= done
                task.journal.say(f"CACHED {title}" if cached else title, step=progress.step)
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
                    await self._steps.do(bench, stage, task.team, task.journal, len(stages))
                    origin = await self._kept(task, bench, stage.key, held)
        return origin

    async def _finalize(self, task: Task, base: Base, origin: Origin, context: Context) -> Made:
        plan, own = task.plan, base.start or GuestFacts()
        named = bool(plan.start_cmd or plan.ready_cmd)
        facts = GuestFacts(
            user=context.user,
            workdir=context.workdir,
            env=dict(context.env),
            start_cmd=plan.start_cmd if named else own.start_cmd,
            ready_cmd=plan.ready_cmd if named else own.ready_cmd,
        )
        idle = GuestFacts(facts.user, facts.workdir, facts.env)
        task.journal.say("[finalize] Making the template's image", step="finalize")
        opened = self._benches.open(origin, task.resources, task.journal, idle)
        async with AsyncExitStack() as undo:
            async with opened as bench:
                await bench.work.declare(facts)
                await start_up(bench, facts, task.journal, self._patience)
                image, record = await self._benches.keep(
                    bench, task.team, SnapshotKind.TEMPLATE, task.template_id
                )
                undo.callback(self._images.drop, image.id)
            undo.pop_all()
        return Made(record, facts, base.image)

    def _bench(self, task: Task, origin: Origin) -> AbstractAsyncContextManager[Bench]:
        facts = GuestFacts(user="root")
        return self._benches.open(origin, task.resources, task.journal, facts, task.around)

    async def _kept(self, task: Task, bench: Bench, key: str, held: Session) -> Origin:
        """Keep the disk under its key."""
        image, record = await self._benches.keep(bench, task.team, SnapshotKind.LAYER)
        try:
            await held.add(key, image, record)
        except BaseException:
            self._images.drop(image.id)
            raise
        return bench.origin.at(image.id)


async def _cached(stages: Sequence[Stage], held: Session) -> tuple[int, str | None]:
    """The number of the last step that need not be done, and the disk after it."""
    usable = [one for one in stages if one.cacheable and one.step.makes_layer]
    last = await held.furthest([one.key for one in usable])
    if last is None:
        return 0, None
    return next(one.number for one in usable if one.key == last.key), last.snapshot_id
