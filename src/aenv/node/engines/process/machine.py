"""One process machine: an agent, its home folder and its port."""

from __future__ import annotations

import asyncio
import signal
from asyncio import Future, Task
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from aenv.models.errors import CapabilityError, Culprit, EngineError
from aenv.models.sandboxes import AGENT_PORT, NetworkPolicy, SandboxExit
from aenv.node.disks.removals import remove_tree
from aenv.node.engine import Address, ExecResult, Machine, MachineStats, MemoryImage
from aenv.node.engines.process import accounts
from aenv.node.supervisor.client import Ending, SupervisorClient

_LOOPBACK = "127.0.0.1"
_DEATH_TIMEOUT = 15.0
_RETRY = 1.0


@dataclass(frozen=True, slots=True)
class Home:
    """``folder`` holds everything of the machine: the guest's home, its console, its port."""

    sandbox_id: str
    folder: Path

    @property
    def key(self) -> str:
        return f"process-{self.sandbox_id}"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def console(self) -> Path:
        return self.folder / "console"

    @property
    def port(self) -> Path:
        return self.folder / "port"


class ProcessMachine(Machine):
    def __init__(
        self,
        home: Home,
        pid: int,
        port: int,
        supervisor: SupervisorClient,
        on_gone: Callable[[str], None],
    ) -> None:
        self.sandbox_id = home.sandbox_id
        self._home = home
        self._pid = pid
        self._port = port
        self._supervisor = supervisor
        self._on_gone = on_gone
        self._exit: Future[SandboxExit] = asyncio.get_running_loop().create_future()
        self._follower = asyncio.create_task(self._follow(), name=f"exit-{self.sandbox_id}")
        self._destruction: Task[None] | None = None

    def address(self, port: int) -> Address:
        """Guest ports are the host's own, but for the agent's."""
        return Address(_LOOPBACK, self._port if port == AGENT_PORT else port)

    async def wait(self) -> SandboxExit:
        return await asyncio.shield(self._exit)

    async def exec(self, argv: Sequence[str], *, timeout: float = 30) -> ExecResult:
        self._require_alive()
        result = await self._supervisor.run(argv, timeout=timeout, cwd=self._home.home)
        if result.timed_out:
            raise EngineError(f"`{argv[0]}` did not end within {timeout:g} s")
        code = 128 + result.signal if result.signal is not None else result.code or 0
        return ExecResult(code, result.stdout, result.stderr)

    async def freeze(self) -> None:
        raise _absent("freeze")

    async def thaw(self) -> None:
        raise _absent("thaw")

    async def checkpoint(self, destination: Path) -> MemoryImage:
        raise _absent("checkpoint")

    async def set_network(self, policy: NetworkPolicy) -> None:
        raise _absent("apply a network policy to")

    async def stats(self) -> MachineStats:
        self._require_alive()
        return await asyncio.to_thread(accounts.measure, self._pid, self._home.folder)

    async def destroy(self) -> None:
        if self._destruction is None or (
            self._destruction.done() and self._destruction.exception() is not None
        ):
            self._destruction = asyncio.create_task(self._destroy())
        await asyncio.shield(self._destruction)

    def let_go(self) -> None:
        """Stop following it; it runs on."""
        self._follower.cancel()

    async def _destroy(self) -> None:
        if not self._exit.done():
            destroyed = SandboxExit(self.sandbox_id, 137, Culprit.CALLER, "destroyed on request")
            self._exit.set_result(destroyed)
        await clear(self._supervisor, self._home)
        self._follower.cancel()
        self._on_gone(self.sandbox_id)

    async def _follow(self) -> None:
        ending = await self._ending()
        if not self._exit.done():
            self._exit.set_result(_classify(self.sandbox_id, ending))

    async def _ending(self) -> Ending:
        while True:
            try:
                return await self._supervisor.wait(self._home.key)
            except EngineError:
                await asyncio.sleep(_RETRY)

    def _require_alive(self) -> None:
        if self._exit.done():
            raise EngineError(f"sandbox {self.sandbox_id} has ended: {self._exit.result().reason}")


async def clear(supervisor: SupervisorClient, home: Home) -> None:
    """End the agent and what it started, then remove its folder. Safe to repeat."""
    record = await supervisor.status(home.key)
    if record is not None:
        descendants = await asyncio.to_thread(accounts.descendants, record.pid)
        await supervisor.signal(home.key, signal.SIGKILL, group=True)
        for process in descendants:
            with suppress(*accounts.GONE):
                process.kill()
        async with asyncio.timeout(_DEATH_TIMEOUT):
            await supervisor.wait(home.key)
        await supervisor.forget(home.key)
    await supervisor.drop_console(home.console)
    try:
        await asyncio.to_thread(remove_tree, home.folder)
    except OSError as error:
        raise EngineError(f"{home.folder} cannot be removed: {error.strerror}") from error


def _classify(sandbox_id: str, ending: Ending) -> SandboxExit:
    """A program in the sandbox may have killed the agent as easily as the host: signals are
    ours.
    """
    if ending.signal is not None:
        reason = f"the agent was killed by {signal.Signals(ending.signal).name}"
        return SandboxExit(sandbox_id, 128 + ending.signal, Culprit.INFRASTRUCTURE, reason)
    if ending.code is None:
        reason = "ended while its supervisor was down; its exit status is unknown"
        return SandboxExit(sandbox_id, None, Culprit.INFRASTRUCTURE, reason)
    reason = f"the agent ended with code {ending.code}"
    return SandboxExit(sandbox_id, ending.code, Culprit.POLICY, reason)


def _absent(operation: str) -> CapabilityError:
    return CapabilityError(f"the process engine cannot {operation} a sandbox; use gvisor")
