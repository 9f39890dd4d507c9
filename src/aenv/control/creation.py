"""Making sandboxes: quotas, idempotency keys, the boot, the route.

A create runs in a task of its own: a caller that hangs up leaves no half-made sandbox, and none
that nobody knows of. With an idempotency key it is made all the same, for the retry; callers with
the same key join it. Whatever goes wrong, the sandbox is ended through ``endings`` and leaves
nothing.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import replace

import structlog
from sqlalchemy import Connection

from aenv.control import networks, quotas, requests, volumes
from aenv.control.clocks import SECOND
from aenv.control.keys import Caller
from aenv.control.requests import CreateRequest
from aenv.control.services import Services
from aenv.control.specs import route, spec
from aenv.control.starts import Start, Starts
from aenv.control.states import StaleError, transition
from aenv.models.errors import (
    AenvError,
    CapacityError,
    ConflictError,
    EngineError,
    IdempotencyMismatchError,
    InfrastructureError,
)
from aenv.models.ids import new_sandbox_id, new_token
from aenv.models.sandboxes import EndKind, SandboxState
from aenv.models.settings import Quotas
from aenv.node.port import RunningSandbox
from aenv.store import idempotency
from aenv.store import sandboxes as rows
from aenv.store.records import IdempotencyRecord, SandboxRecord

log = structlog.get_logger()
BOOT_TIMEOUT = 120.0
CLAIM_TIMEOUT = 2.0
KEY_LIFE = 24 * 3600 * SECOND


class Creation:
    """``closed`` refuses further creates while the server shuts down."""

    def __init__(self, services: Services, starts: Starts) -> None:
        self._s = services
        self._starts = starts
        self.closed = False

    async def create(self, caller: Caller, request: CreateRequest) -> SandboxRecord:
        """A running sandbox, or the one that this idempotency key already made."""
        return await self.start(caller, request)

    async def start(
        self, caller: Caller, request: CreateRequest, start: Start | None = None
    ) -> SandboxRecord:
        """As :meth:`create`, from ``start`` instead of what the request names."""
        began = time.monotonic()
        try:
            record = await self._create(caller, request, start, began)
        except AenvError as error:
            self._s.telemetry.create_failed(error.code)
            raise
        self._s.deadline(record.end_at)
        return record

    async def _create(
        self, caller: Caller, request: CreateRequest, start: Start | None, started: float
    ) -> SandboxRecord:
        if self.closed:
            raise CapacityError("the server is shutting down", retry_after=5)
        requests.check(request)
        if (made := await self._replay(caller, request)) is not None:
            return await self._join(made, request)
        claims = start is None
        start = start or await self._starts.of(caller.team, request)
        if request.auto_pause or request.auto_resume:
            await self._starts.check_pausing(start.engine or request.engine)
        mounts = await self._s.volumes.mounts(caller.team, request.volume_mounts, start.volumes)
        start = replace(start, volumes=mounts)
        claimed = await self._claim(request, start) if claims and not mounts else None
        draft = self._draft(caller, request, start, claimed or new_sandbox_id())
        task = self._s.background.start(
            self._make(request, draft, start, started), f"create {draft.id}"
        )
        self._s.boots.making[draft.id] = task
        task.add_done_callback(lambda _: self._s.boots.making.pop(draft.id, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if request.idempotency_key is None and not self.closed:
                self._s.background.start(self._give_up(draft.id, task), f"give up {draft.id}")
            raise

    async def _give_up(self, sandbox_id: str, making: asyncio.Task[SandboxRecord]) -> None:
        """End what nobody will hear of, at once or, if it is not written down yet, once made."""
        for _ in range(2):
            with suppress(AenvError):
                await self._s.endings.end(
                    sandbox_id, EndKind.KILLED, "its caller hung up before the answer"
                )
                return
            await asyncio.wait({making})

    async def _make(
        self, request: CreateRequest, draft: SandboxRecord, start: Start, started: float
    ) -> SandboxRecord:
        try:
            made = await self._s.catalog.write(lambda db: self._reserve(db, request, draft))
        except BaseException:
            await self._s.node.unclaim(draft.id)
            raise
        if made is not None:
            await self._s.node.unclaim(draft.id)
            return await self._join(made, request)
        try:
            async with self._s.cold.here(start.snapshot):
                running = await self._boot(draft, start)
            record = await self._record_running(draft, request, running)
        except BaseException as error:
            await self._s.endings.abandon(draft, error)
            raise
        self._s.telemetry.created(time.monotonic() - started)
        used = start.counted or record.template
        self._s.background.start(self._count_use(used), "count use")
        log.info("sandbox runs", sandbox_id=record.id, template=record.template)
        return record

    async def _claim(self, request: CreateRequest, start: Start) -> str | None:
        """The id of a machine that waits for such a create, if there is one."""
        engine = start.engine or request.engine
        try:
            async with asyncio.timeout(CLAIM_TIMEOUT):
                return await self._s.node.claim(
                    start.template, start.resources, snapshot=start.snapshot, engine=engine
                )
        except (AenvError, TimeoutError) as error:
            log.warning("no machine claimed", template=start.template, error=repr(error))
            return None

    async def _replay(self, caller: Caller, request: CreateRequest) -> IdempotencyRecord | None:
        if request.idempotency_key is None:
            return None
        key = request.idempotency_key
        made = await self._s.catalog.read(lambda db: idempotency.get(db, caller.key_id, key))
        return made if made is not None and self._is_fresh(made) else None

    async def _join(self, made: IdempotencyRecord, request: CreateRequest) -> SandboxRecord:
        """What the same key made, waiting for it if it is still being made."""
        if made.fingerprint != request.fingerprint:
            raise IdempotencyMismatchError(
                f"Idempotency-Key {request.idempotency_key!r} was used with another body; "
                "use a new key for a new request"
            )
        if (task := self._s.boots.making.get(made.sandbox_id)) is not None:
            return await asyncio.shield(task)
        record = await self._s.catalog.read(lambda db: rows.get(db, made.sandbox_id))
        if record is None or record.state is SandboxState.CREATING:
            raise ConflictError("the first request with this Idempotency-Key has just failed")
        return record

    def _reserve(
        self, db: Connection, request: CreateRequest, draft: SandboxRecord
    ) -> IdempotencyRecord | None:
        """Write the row, within the quota and under the idempotency key; or say who was first."""
        now = self._s.clock.wall()
        key = request.idempotency_key
        if key is not None:
            made = idempotency.get(db, draft.key_id, key)
            if made is not None and self._is_fresh(made):
                return made
            idempotency.purge(db, now - KEY_LIFE)
        if self._s.settings.quotas != Quotas():
            used = rows.usage_of_key(db, draft.key_id, quotas.COUNTED, now)
            quotas.check(self._s.settings.quotas, used, draft.resources)
        rows.add(db, draft)
        volumes.claim(db, draft)
        if key is not None:
            first = IdempotencyRecord(request.fingerprint, draft.id, now)
            idempotency.add(db, draft.key_id, key, first)
        return None

    async def _count_use(self, template: str) -> None:
        """Statistics; not worth a caller's time."""
        now = self._s.clock.wall()
        await self._s.catalog.write(lambda db: rows.count_use(db, template, now))

    async def _boot(self, draft: SandboxRecord, start: Start) -> RunningSandbox:
        asked = spec(draft, snapshot=start.snapshot)
        call = asyncio.create_task(self._s.node.create(asked), name=f"boot {draft.id}")
        self._s.boots.booting[draft.id] = call
        try:
            async with asyncio.timeout(BOOT_TIMEOUT):
                await asyncio.wait({call})
        except TimeoutError as error:
            raise EngineError(f"the sandbox did not boot within {BOOT_TIMEOUT:g} s") from error
        finally:
            self._s.boots.booting.pop(draft.id, None)
            if not call.done():
                call.cancel()
                await asyncio.wait({call}, timeout=10)
        if call.cancelled():
            raise _ended(draft)
        return _result(call)

    async def _record_running(
        self, draft: SandboxRecord, request: CreateRequest, running: RunningSandbox
    ) -> SandboxRecord:
        now = self._s.clock.wall()
        try:
            record = await self._s.catalog.write(
                lambda db: transition(
                    db,
                    draft,
                    SandboxState.RUNNING,
                    engine=running.engine,
                    started_at=now,
                    end_at=now + request.timeout * SECOND,
                    restored=running.restored,
                    note=running.note,
                )
            )
        except StaleError as error:
            raise _ended(draft) from error
        self._s.routes.publish(route(record, running))
        if running.note is not None:
            await self._s.events.note(record.id, running.note, level="warn")
        return record

    def _draft(
        self, caller: Caller, request: CreateRequest, start: Start, sandbox_id: str
    ) -> SandboxRecord:
        now = self._s.clock.wall()
        return SandboxRecord(
            id=sandbox_id,
            version=1,
            state=SandboxState.CREATING,
            team=caller.team,
            key_id=caller.key_id,
            template_id=start.template_id,
            template=start.template,
            engine=start.engine or request.engine or self._s.settings.engine,
            resources=start.resources,
            access_token=new_token(),
            host_secret=new_token(),
            traffic_token=None if request.network.allow_public_traffic else new_token(),
            labels=dict(request.metadata),
            network=networks.to_json(request.network),
            created_at=now,
            started_at=now,
            end_at=now + request.timeout * SECOND,
            env_vars={**start.env_vars, **request.env_vars},
            secret_env=request.secret_env,
            timeout=request.timeout,
            auto_pause=request.auto_pause,
            auto_pause_memory=request.auto_pause_memory,
            auto_resume=request.auto_resume,
            parent_sandbox=start.parent_sandbox,
            parent_snapshot=start.parent_snapshot,
            volumes=start.volumes,
        )

    def _is_fresh(self, made: IdempotencyRecord) -> bool:
        return made.created_at > self._s.clock.wall() - KEY_LIFE


def _ended(draft: SandboxRecord) -> ConflictError:
    return ConflictError(f"sandbox {draft.id} ended while it was being created")


def _result(call: asyncio.Task[RunningSandbox]) -> RunningSandbox:
    error = call.exception()
    if error is None:
        return call.result()
    if isinstance(error, AenvError):
        raise error
    raise InfrastructureError(f"the sandbox could not be made: {error!r}") from error
