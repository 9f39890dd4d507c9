"""A server's first act: bring catalog and node to agree, whatever happened to either while it was
away.

| found in the catalog | machine there | machine gone |
|---|---|---|
| running | runs on | ended, with its exit |
| pausing | runs on, without the image | paused, if the image is whole; else ended |
| paused | stays frozen (hot) | stays paused; ended if it was in memory only |
| resuming | runs | paused again |
| creating, killing | destroyed | recorded as ended |
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog
from sqlalchemy import Connection

from aenv.control import lookups
from aenv.control.clocks import SECOND
from aenv.control.deadlines import deadline
from aenv.control.endings import Endings
from aenv.control.events import Events
from aenv.control.images import Images, record_of
from aenv.control.routes import RouteTable
from aenv.control.specs import route
from aenv.control.states import transition
from aenv.models.errors import AenvError, Culprit, InfrastructureError
from aenv.models.sandboxes import ENDED, SandboxExit, SandboxState
from aenv.models.snapshots import PauseMode, SnapshotImage, SnapshotKind
from aenv.node.port import Adoption, AdoptRequest, Node, RunningSandbox
from aenv.store import cold, snapshots
from aenv.store import sandboxes as rows
from aenv.store.catalog import Catalog
from aenv.store.records import SandboxRecord

log = structlog.get_logger()
START_TIMEOUT = 300.0
IMAGES_TIMEOUT = 60.0
UNFINISHED = (
    SandboxState.CREATING,
    SandboxState.RUNNING,
    SandboxState.PAUSING,
    SandboxState.PAUSED,
    SandboxState.RESUMING,
    SandboxState.KILLING,
)
ADOPTED = lookups.VISIBLE
UNREADABLE = "the image it is paused by is damaged or missing; the server's log tells what is"


async def adopt(
    catalog: Catalog, node: Node, routes: RouteTable, endings: Endings, images: Images
) -> Adoption:
    """Start the node with what should be there, and settle what was under way. The node reaps
    everything else, images included.
    """
    found = await catalog.read(lambda db: rows.in_states(db, UNFINISHED))
    await catalog.write(snapshots.forget_unneeded)
    keep = await catalog.read(snapshots.needed)
    known = {record.id: record for record in found}
    wanted = tuple(_request(record) for record in found if record.state in ADOPTED)
    async with deadline(START_TIMEOUT, "starting the node"):
        outcome = await node.start(wanted, snapshots=keep)
    whole = await _images(node, known.values())
    stored = await catalog.read(cold.stored)
    for running in outcome.running:
        record = known.pop(running.sandbox_id)
        routes.publish(route(await _runs(catalog, record, running), running))
        images.drop(record.snapshot_id)
    events = Events(node)
    exits = {exit_.sandbox_id: exit_ for exit_ in outcome.ended}
    for record in known.values():
        hot = record.id in outcome.paused
        if not (hot or await _stays_paused(catalog, record, whole)):
            await _finish(record, endings, exits.get(record.id), events)
        elif not (hot or record.snapshot_id in whole or record.snapshot_id in stored):
            await events.note(record.id, UNREADABLE, level="error")
    log.info(
        "catalog and node agree",
        running=len(outcome.running),
        hot=len(outcome.paused),
        ended=len(outcome.ended),
        reaped=len(outcome.reaped),
    )
    return outcome


async def _images(node: Node, found: Iterable[SandboxRecord]) -> dict[str, SnapshotImage]:
    """What the node has kept; asked for only where something depends on it."""
    if not any(record.snapshot_id for record in found):
        return {}
    async with deadline(IMAGES_TIMEOUT, "asking the node for its snapshots"):
        return {image.id: image for image in await node.snapshots()}


async def _runs(catalog: Catalog, record: SandboxRecord, running: RunningSandbox) -> SandboxRecord:
    """A pause that was interrupted did not happen; a resume that was has."""
    if record.state is SandboxState.RUNNING:
        return record
    image = record.snapshot_id

    def record_it(db: Connection) -> SandboxRecord:
        snapshots.remove(db, [image] if image else [])
        return transition(
            db,
            record,
            SandboxState.RUNNING,
            snapshot_id=None,
            pause_mode=None,
            unresponsive_at_pause=False,
            restored=running.restored,
        )

    return await catalog.write(record_it)


async def _stays_paused(
    catalog: Catalog, record: SandboxRecord, images: dict[str, SnapshotImage]
) -> bool:
    """Whether ``record`` goes on as paused: its image is there, or was recorded as whole."""
    image = images.get(record.snapshot_id or "")
    if record.state is SandboxState.PAUSED:
        return record.snapshot_id is not None
    if record.state is SandboxState.RESUMING and record.snapshot_id is not None:
        await catalog.write(lambda db: transition(db, record, SandboxState.PAUSED))
        return True
    if record.state is SandboxState.PAUSING and image is not None:
        kept = record_of(image, record, SnapshotKind.PAUSE, now=int(image.created_at * SECOND))
        mode = PauseMode.FULL if image.has_memory else PauseMode.FILESYSTEM

        def record_it(db: Connection) -> None:
            transition(db, record, SandboxState.PAUSED, pause_mode=mode)
            snapshots.add(db, kept)

        await catalog.write(record_it)
        return True
    return False


async def _finish(
    record: SandboxRecord, endings: Endings, exit_: SandboxExit | None, events: Events
) -> None:
    try:
        if record.state is SandboxState.KILLING:
            await endings.resume(record)
        elif record.state is SandboxState.CREATING:
            lost = InfrastructureError("the server stopped while it was being created")
            await endings.abandon(record, lost)
        else:
            reason = "its machine was gone when the server came back"
            exit_ = exit_ or SandboxExit(record.id, None, Culprit.INFRASTRUCTURE, reason)
            await events.note(record.id, f"{ENDED}: {exit_.reason}", level="error")
            await endings.exited(exit_)
    except AenvError as error:
        log.error("not finished, the sweep will", sandbox_id=record.id, error=str(error))


def _request(record: SandboxRecord) -> AdoptRequest:
    return AdoptRequest(
        sandbox_id=record.id,
        template=record.template,
        host_secret=record.host_secret,
        access_token=record.access_token,
        paused=record.state is SandboxState.PAUSED,
        engine=record.engine,
        resources=record.resources,
    )
