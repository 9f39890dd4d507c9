"""Forks: one image of a running sandbox, and new sandboxes from it beside each other.

The source runs on, whatever becomes of its forks; each fork comes to life or fails by itself. The
image goes when the last of them has.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import structlog

from aenv.control import lookups, networks, requests
from aenv.control.creation import Creation
from aenv.control.keys import Caller
from aenv.control.requests import CreateRequest
from aenv.control.services import Services
from aenv.control.snapshots import Snapshots
from aenv.control.starts import Start
from aenv.models.errors import AenvError, InvalidRequestError
from aenv.models.snapshots import SnapshotKind
from aenv.store.records import SandboxRecord, SnapshotRecord

log = structlog.get_logger()
MAX_FORKS = 20


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """``secrets``: also hand on the variables that were marked secret."""

    count: int = 1
    timeout: int = 300
    secrets: bool = False


class Forks:
    def __init__(self, services: Services, creation: Creation, snapshots: Snapshots) -> None:
        self._s = services
        self._creation = creation
        self._snapshots = snapshots

    async def fork(
        self, caller: Caller, sandbox_id: str, request: ForkRequest
    ) -> list[SandboxRecord | AenvError]:
        """One outcome per fork. SandboxNotFoundError and ConflictError (paused) for all of them."""
        if not 1 <= request.count <= MAX_FORKS:
            raise InvalidRequestError(f"count: 1 to {MAX_FORKS}, not {request.count}")
        requests.check_timeout(request.timeout, "timeout")
        await lookups.living(self._s.catalog, self._s.clock, caller.team, sandbox_id)
        work = self._s.background.start(
            self._fork(caller, sandbox_id, request), f"fork {sandbox_id}"
        )
        return await asyncio.shield(work)

    async def _fork(
        self, caller: Caller, sandbox_id: str, request: ForkRequest
    ) -> list[SandboxRecord | AenvError]:
        image = await self._snapshots.take(caller.team, sandbox_id, SnapshotKind.FORK)
        try:
            source = await lookups.read(self._s.catalog, sandbox_id)
            assert source is not None
            children = (self._child(caller, source, image, request) for _ in range(request.count))
            outcomes = await asyncio.gather(*children)
        finally:
            self._snapshots.discard(image)
        failed = sum(isinstance(outcome, AenvError) for outcome in outcomes)
        self._s.telemetry.forked(request.count - failed, failed)
        return outcomes

    async def _child(
        self, caller: Caller, source: SandboxRecord, image: SnapshotRecord, request: ForkRequest
    ) -> SandboxRecord | AenvError:
        variables = source.env_vars if request.secrets else source.public_env
        asked = CreateRequest(
            template=source.template,
            timeout=request.timeout,
            metadata=source.labels,
            env_vars=variables,
            secret_env=tuple(name for name in source.secret_env if name in variables),
            network=networks.from_json(source.network),
            engine=source.engine,
            auto_pause=source.auto_pause,
            auto_pause_memory=source.auto_pause_memory,
            auto_resume=source.auto_resume,
        )
        start = Start(
            template=source.template,
            template_id=source.template_id,
            resources=source.resources,
            snapshot=image.id,
            parent_sandbox=source.id,
            parent_snapshot=source.parent_snapshot,
            volumes=image.volumes,
        )
        try:
            return await self._creation.start(caller, asked, start)
        except AenvError as error:
            return error
