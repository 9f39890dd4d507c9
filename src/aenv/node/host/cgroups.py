"""Limits and accounts of sandboxes in control groups: v2, v1 and hybrid."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aenv.models.sandboxes import Resources
from aenv.node.engine import Finding


@dataclass(frozen=True, slots=True)
class CgroupStats:
    cpu_seconds: float
    memory_bytes: int
    pids: int


class Cgroups:
    def __init__(self, instance: str) -> None:
        raise NotImplementedError

    @property
    def available(self) -> bool:
        """Whether limits can be enforced here; if not, run the engine without cgroups and show :meth:`findings`."""
        raise NotImplementedError

    def findings(self) -> list[Finding]:
        raise NotImplementedError

    def path(self, sandbox_id: str) -> str:
        """The OCI ``cgroupsPath``, from the root of each hierarchy."""
        raise NotImplementedError

    def oci(self, sandbox_id: str, resources: Resources) -> dict[str, Any]:
        """``{"cgroupsPath": …, "resources": …}`` for the ``linux`` part of an OCI config."""
        raise NotImplementedError

    async def create(self, sandbox_id: str, resources: Resources) -> None:
        """Make the groups with their limits. Idempotent."""
        raise NotImplementedError

    async def stats(self, sandbox_id: str) -> CgroupStats:
        """Raises EngineError when the group is gone."""
        raise NotImplementedError

    async def destroy(self, sandbox_id: str) -> None:
        """Kill what is inside and remove the groups; idempotent."""
        raise NotImplementedError

    async def reap(self, keep: frozenset[str]) -> list[str]:
        raise NotImplementedError
