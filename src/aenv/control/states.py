"""The sandbox's state machine: one table of arrows, one function that goes along them.

creating → running ⇄ pausing/paused/resuming any of these → killing → killed | failed

``killing`` is recorded before anything is torn down, together with why; what a crash leaves in
``creating`` or ``killing`` is finished at the next start. Every step is fenced by id and version:
of two that race, one gets StaleError and looks again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import Connection

from aenv.models.errors import ConflictError
from aenv.models.sandboxes import EndKind, SandboxState
from aenv.store import sandboxes as rows
from aenv.store.records import SandboxRecord

S = SandboxState
ARROWS: dict[SandboxState, frozenset[SandboxState]] = {
    S.CREATING: frozenset({S.RUNNING, S.KILLING}),
    S.RUNNING: frozenset({S.RUNNING, S.PAUSING, S.KILLING}),
    S.PAUSING: frozenset({S.PAUSED, S.RUNNING, S.KILLING}),
    S.PAUSED: frozenset({S.PAUSED, S.RESUMING, S.KILLING}),
    S.RESUMING: frozenset({S.RUNNING, S.PAUSED, S.KILLING}),
    S.KILLING: frozenset({S.KILLED, S.FAILED}),
    S.KILLED: frozenset(),
    S.FAILED: frozenset(),
}
"""An arrow to itself is a change of deadline or rules that leaves the state alone."""

OVER = frozenset({S.KILLING, S.KILLED, S.FAILED})
OUR_FAULT = frozenset({EndKind.INFRASTRUCTURE, EndKind.CREATE_FAILED})


class StaleError(ConflictError):
    """Somebody else changed the sandbox since it was read."""

    code = "stale"


def transition(
    db: Connection, record: SandboxRecord, to: SandboxState, **changes: Any
) -> SandboxRecord:
    """Move ``record`` to state ``to``, writing ``changes`` with it; the only way a sandbox's row
    changes.

    StaleError when the row is no longer the one that was read; ConflictError when there is no such
    arrow.
    """
    if to not in ARROWS[record.state]:
        raise ConflictError(f"sandbox {record.id} is {record.state} and cannot become {to}")
    if not rows.change(db, record.id, record.version, {"state": to, **changes}):
        raise StaleError(f"sandbox {record.id} was changed by another request; try again")
    return replace(record, state=to, version=record.version + 1, **changes)


def final_state(kind: EndKind | None) -> SandboxState:
    """Where ``killing`` leads: a sandbox that ended through our fault has failed."""
    return S.FAILED if kind in OUR_FAULT else S.KILLED
