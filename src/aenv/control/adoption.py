"""A server's first act: bring catalog and node to agree, whatever happened to either while it was
away.
"""

from __future__ import annotations

import structlog

from aenv.control import creation
from aenv.control.deadlines import deadline
from aenv.control.endings import Endings
from aenv.control.routes import RouteTable
from aenv.models.errors import AenvError, Culprit, InfrastructureError
from aenv.models.sandboxes import SandboxExit, SandboxState
from aenv.node.port import Adoption, AdoptRequest, Node
from aenv.store import sandboxes as rows
from aenv.store.catalog import Catalog
from aenv.store.records import SandboxRecord

log = structlog.get_logger()
START_TIMEOUT = 300.0
UNFINISHED = (
    SandboxState.CREATING,
    SandboxState.RUNNING,
    SandboxState.PAUSING,
    SandboxState.RESUMING,
    SandboxState.KILLING,
)


async def adopt(catalog: Catalog, node: Node, routes: RouteTable, endings: Endings) -> Adoption:
    """Start the node with what should run. Running ones get their routes back; those that ended
    meanwhile are recorded with their exit; half-made and half-ended ones are finished off (the node
    reaps everything else).
    """
    unfinished = await catalog.read(lambda db: rows.in_states(db, UNFINISHED))
    known = {record.id: record for record in unfinished}
    wanted = tuple(_request(record) for record in known.values() if _should_run(record))
    async with deadline(START_TIMEOUT, "starting the node"):
        outcome = await node.start(wanted)
    for running in outcome.running:
        record = known.pop(running.sandbox_id)
        routes.publish(creation.route(record, running))
    for exit_ in outcome.ended:
        if known.pop(exit_.sandbox_id, None) is not None:
            await endings.exited(exit_)
    for record in known.values():
        await _finish(record, endings)
    log.info(
        "catalog and node agree",
        running=len(outcome.running),
        ended=len(outcome.ended),
        finished=len(known),
        reaped=len(outcome.reaped),
    )
    return outcome


async def _finish(record: SandboxRecord, endings: Endings) -> None:
    try:
        if record.state is SandboxState.KILLING:
            await endings.resume(record)
        elif record.state is SandboxState.CREATING:
            lost = InfrastructureError("the server stopped while it was being created")
            await endings.abandon(record, lost)
        else:
            reason = "its machine was gone when the server came back"
            await endings.exited(SandboxExit(record.id, None, Culprit.INFRASTRUCTURE, reason))
    except AenvError as error:
        log.error("not finished, the sweep will", sandbox_id=record.id, error=str(error))


def _should_run(record: SandboxRecord) -> bool:
    return record.state in (SandboxState.RUNNING, SandboxState.PAUSING)


def _request(record: SandboxRecord) -> AdoptRequest:
    return AdoptRequest(
        sandbox_id=record.id,
        template=record.template,
        host_secret=record.host_secret,
        access_token=record.access_token,
        engine=record.engine,
        resources=record.resources,
    )
