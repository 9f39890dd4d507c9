"""What one API key may hold at a time."""

from __future__ import annotations

from aenv.models.errors import QuotaExceededError
from aenv.models.sandboxes import Resources, SandboxState
from aenv.models.settings import Quotas
from aenv.store.records import Usage

COUNTED = (
    SandboxState.CREATING,
    SandboxState.RUNNING,
    SandboxState.PAUSING,
    SandboxState.RESUMING,
)


def check(quotas: Quotas, used: Usage, wanted: Resources) -> None:
    """QuotaExceededError with the figures when ``wanted`` on top of ``used`` is too much."""
    for what, limit, now, more in (
        ("sandboxes", quotas.sandboxes, used.sandboxes, 1),
        ("vCPUs", quotas.cpu, used.cpu, wanted.cpu),
        ("MiB of memory", quotas.memory_mb, used.memory_mb, wanted.memory_mb),
    ):
        if limit is not None and now + more > limit:
            raise QuotaExceededError(
                f"quota of this API key: {now:g} {what} in use, {more:g} more asked for, "
                f"the limit is {limit:g}; end a sandbox or have the limit raised"
            )
