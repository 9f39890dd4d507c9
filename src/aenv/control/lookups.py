"""Which sandboxes a caller sees: those of the team that live.

One whose time has passed is gone at once, even before the reaper comes by; unless it pauses then,
or is paused already and has no end.
"""

from __future__ import annotations

from aenv.control.clocks import Clock
from aenv.models.errors import SandboxNotFoundError
from aenv.models.ids import is_sandbox_id
from aenv.models.sandboxes import SandboxState
from aenv.store import sandboxes as rows
from aenv.store.catalog import Catalog
from aenv.store.records import SandboxRecord

VISIBLE = (
    SandboxState.RUNNING,
    SandboxState.PAUSING,
    SandboxState.PAUSED,
    SandboxState.RESUMING,
)
"""States that callers see, as running or paused."""


async def read(catalog: Catalog, sandbox_id: str) -> SandboxRecord | None:
    if not is_sandbox_id(sandbox_id):
        return None
    return await catalog.read(lambda db: rows.get(db, sandbox_id))


async def living(catalog: Catalog, clock: Clock, team: str, sandbox_id: str) -> SandboxRecord:
    """SandboxNotFoundError for everything a caller does not see."""
    record = await read(catalog, sandbox_id)
    if record is None or record.team != team or not lives(record, clock.wall()):
        raise not_found(sandbox_id)
    return record


def lives(record: SandboxRecord, now: int) -> bool:
    if record.state is SandboxState.RUNNING:
        return record.auto_pause or record.end_at > now
    return record.state in VISIBLE


def not_found(sandbox_id: str) -> SandboxNotFoundError:
    return SandboxNotFoundError(
        f"sandbox {sandbox_id[:64]!r} was not found; if it ran, `aenv logs` tells its end"
    )
