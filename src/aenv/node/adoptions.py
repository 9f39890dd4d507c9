"""Taking over, after a restart of the server, a sandbox that outlived it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace

from aenv.models.errors import AenvError, AgentUnreachableError, Culprit, EngineError
from aenv.models.sandboxes import AGENT_PORT, Resources, SandboxExit
from aenv.node.agents import AgentClient
from aenv.node.engine import Engine, Machine
from aenv.node.engine_set import EngineSet
from aenv.node.launches import Launcher
from aenv.node.memos import Memo, Memos
from aenv.node.port import AdoptRequest
from aenv.node.residents import DESTROY_DEADLINE, HotPause, Resident
from aenv.node.snapshots.store import SnapshotStore

PROBE_TIMEOUT = 2.0
_EXIT_IS_KNOWN = 1.0
_DEAD_ALREADY = 0.1


class Adopter:
    def __init__(
        self, engines: EngineSet, launcher: Launcher, memos: Memos, snapshots: SnapshotStore
    ) -> None:
        self._engines = engines
        self._launcher = launcher
        self._memos = memos
        self._snapshots = snapshots
        self._reaping = asyncio.Lock()

    async def adopt(self, request: AdoptRequest) -> Resident | SandboxExit | None:
        """The resident, or how it ended meanwhile; None: it is paused, and not in memory any more.

        A guest that hangs is alive, and adopted.
        """
        try:
            engine = await self._engines.get(request.engine)
            machine = await engine.adopt(request.sandbox_id)
            agent = AgentClient(
                machine.address(AGENT_PORT),
                host_secret=request.host_secret,
                access_token=request.access_token,
            )
            if request.paused:
                return await self._adopt_paused(request, engine, machine, agent)
            return await self._adopt_running(request, engine, machine, agent)
        except AenvError as error:
            await self._give_up(request)
            if request.paused:
                return None
            reason = f"it could not be taken over after a restart of the server: {error}"
            return SandboxExit(request.sandbox_id, None, Culprit.INFRASTRUCTURE, reason)

    async def _adopt_running(
        self, request: AdoptRequest, engine: Engine, machine: Machine, agent: AgentClient
    ) -> Resident | SandboxExit:
        """It may be frozen, if the server died while it paused or copied it. One whose guest was
        not told who it is was never handed out.
        """
        memo = self._memos.read(request.sandbox_id)
        if memo and not memo.ready:
            raise EngineError("the server died before the sandbox was ready")
        if machine.frozen:
            await machine.thaw()
        if end := await _known_end(machine, agent):
            await _destroy(machine)
            return end
        if memo and memo.paused_as:
            memo = replace(memo, paused_as=None)
            self._memos.write(request.sandbox_id, memo)
        return await self._resident(request, engine, machine, agent, memo)

    async def _adopt_paused(
        self, request: AdoptRequest, engine: Engine, machine: Machine, agent: AgentClient
    ) -> Resident | None:
        """Frozen, it stays hot. One that runs was being resumed, and nobody was told: its snapshot
        is what it is, if it has one.
        """
        memo = self._memos.read(request.sandbox_id)
        snapshot_id = memo.paused_as if memo else None
        if snapshot_id not in self._snapshots:
            snapshot_id = None
        lost = memo is not None and not memo.ready  # it was being restored
        if lost or await _has_ended(machine) or (snapshot_id and not machine.frozen):
            await _destroy(machine)
            return None
        await machine.freeze()
        resident = await self._resident(request, engine, machine, agent, memo)
        resident.hot = HotPause(snapshot_id, time.monotonic())
        return resident

    async def _resident(
        self,
        request: AdoptRequest,
        engine: Engine,
        machine: Machine,
        agent: AgentClient,
        memo: Memo | None,
    ) -> Resident:
        digest = memo.digest if memo else None
        info = await self._launcher.template(engine, request.template, digest)
        if memo is None:  # it was started by a server that wrote none
            resources = request.resources or Resources()
            memo = Memo(request.template, info.digest, resources, ready=True, env_known=False)
        info = memo.facts.over(info) if memo.facts else info
        resident = Resident(request.sandbox_id, machine, engine.capabilities, agent, info)
        resident.memo = memo
        return resident

    async def _give_up(self, request: AdoptRequest) -> None:
        """Nothing may be left of a machine that is not taken over."""
        self._memos.remove(request.sandbox_id)
        self._engines.keep[request.engine] -= {request.sandbox_id}
        async with self._reaping:
            with contextlib.suppress(AenvError):
                engine = await self._engines.get(request.engine)
                await engine.reap(self._engines.keep[request.engine])


async def _known_end(machine: Machine, agent: AgentClient) -> SandboxExit | None:
    """Its exit if it has ended: who answers lives, who does not is given time to be dead."""
    end = asyncio.create_task(machine.wait())
    try:
        answered = await _answers(agent)
        await asyncio.wait({end}, timeout=0 if answered else _EXIT_IS_KNOWN)
        return end.result() if end.done() else None
    except AenvError as error:
        return SandboxExit(machine.sandbox_id, None, Culprit.INFRASTRUCTURE, str(error))
    finally:
        end.cancel()


async def _has_ended(machine: Machine) -> bool:
    end = asyncio.create_task(machine.wait())
    await asyncio.wait({end}, timeout=_DEAD_ALREADY)
    ended = end.done()
    end.cancel()
    return ended


async def _destroy(machine: Machine) -> None:
    with contextlib.suppress(AenvError, TimeoutError):
        async with asyncio.timeout(DESTROY_DEADLINE):
            await machine.destroy()


async def _answers(agent: AgentClient) -> bool:
    try:
        await agent.health(timeout=PROBE_TIMEOUT)
    except AgentUnreachableError:
        return False
    return True
