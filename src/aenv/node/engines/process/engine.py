"""Making process machines."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress

from aenv.models.errors import (
    CapabilityError,
    ConflictError,
    EngineError,
    HostSetupError,
    NotFoundError,
)
from aenv.models.settings import NO_ISOLATION, Settings
from aenv.node.engine import (
    Capabilities,
    Engine,
    Finding,
    Isolation,
    Machine,
    MachineSpec,
    MemoryImage,
)
from aenv.node.engines.folders import subfolders
from aenv.node.engines.process.machine import Home, ProcessMachine, clear
from aenv.node.engines.tasks import finish
from aenv.node.supervisor.client import SupervisorClient

logger = logging.getLogger(__name__)

_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_LISTEN_TIMEOUT = 15.0
_LISTEN_POLL = 0.005
_ATTEMPTS = 5


class ProcessEngine(Engine):
    """No isolation: a sandbox is a child with a home folder; it sees and may do what we may."""

    capabilities = Capabilities(engine="process", isolation=Isolation.NONE, needs_root=False)

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._folder = settings.folders.data / "process"
        self._supervisor = SupervisorClient(settings.folders.instance_run)
        self._machines: dict[str, ProcessMachine] = {}

    async def probe(self) -> list[Finding]:
        """It needs nothing of the host; what it lacks, its capabilities say."""
        return []

    async def start(self) -> None:
        try:
            await asyncio.to_thread(self._folder.mkdir, mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise HostSetupError(f"cannot make {self._folder}: {error}; choose --data") from error
        logger.warning(NO_ISOLATION)
        await self._supervisor.start()

    async def close(self) -> None:
        for machine in self._machines.values():
            machine.let_go()
        self._machines.clear()
        with suppress(EngineError):
            await self._supervisor.retire()
        await self._supervisor.close()

    async def boot(self, spec: MachineSpec) -> Machine:
        """``rootfs``, ``resources`` and ``network`` are the host's own: declared, not enforced."""
        home = self._home(spec.sandbox_id)
        try:
            home.folder.mkdir(mode=0o700)
        except FileExistsError:
            raise ConflictError(f"a machine {spec.sandbox_id} exists on this host") from None
        try:
            await asyncio.to_thread(home.home.mkdir, mode=0o700)
            return await self._start_agent(spec, home)
        except BaseException:
            await finish(clear(self._supervisor, home))
            raise

    async def restore(self, spec: MachineSpec, image: MemoryImage) -> Machine:
        raise CapabilityError("the process engine has no memory snapshots; use gvisor")

    async def adopt(self, sandbox_id: str) -> Machine:
        if sandbox_id in self._machines:
            return self._machines[sandbox_id]
        home = self._home(sandbox_id)
        record = await self._supervisor.status(home.key)
        if record is None:
            raise NotFoundError(f"no machine {sandbox_id} outlived the server on this host")
        try:
            port = int(await asyncio.to_thread(home.port.read_text))
        except (OSError, ValueError):
            port = 0
        return self._enlist(home, record.pid, port)

    async def reap(self, keep: frozenset[str]) -> list[str]:
        found = await asyncio.to_thread(subfolders, self._folder)
        for record in await self._supervisor.records():
            prefix, _, sandbox_id = record.key.partition("-")
            if prefix == "process":
                found.add(sandbox_id)
        doomed = sorted(found - keep)
        for sandbox_id in doomed:
            if sandbox_id in self._machines:
                await self._machines[sandbox_id].destroy()
            else:
                await clear(self._supervisor, self._home(sandbox_id))
        return doomed

    async def _start_agent(self, spec: MachineSpec, home: Home) -> Machine:
        """A free port is taken by nobody else until the agent binds it, or we try another."""
        for _ in range(_ATTEMPTS):
            port = _free_port()
            record = await finish(
                self._supervisor.spawn(
                    home.key,
                    [
                        str(spec.agent),
                        f"--listen=127.0.0.1:{port}",
                        "--single-user",
                        f"--home={home.home}",
                    ],
                    env={"PATH": _PATH, "HOME": str(home.home), **spec.agent_env},
                    cwd=home.home,
                    console=home.console,
                )
            )
            if await self._listens(home, port):
                await asyncio.to_thread(home.port.write_text, str(port))
                return self._enlist(home, record.pid, port)
            output = await self._supervisor.output(home.key)
            await self._supervisor.forget(home.key)
            if b"address already in use" not in output:
                break
        words = output.decode(errors="replace").strip()[-500:]
        raise EngineError(f"the agent ended at once: {words or 'it wrote nothing'}")

    async def _listens(self, home: Home, port: int) -> bool:
        """True once the agent answers on its port, False if it has ended."""
        deadline = asyncio.get_running_loop().time() + _LISTEN_TIMEOUT
        while asyncio.get_running_loop().time() < deadline:
            record = await self._supervisor.status(home.key)
            if record is None or record.ending is not None:
                return False
            try:
                async with asyncio.timeout(1):
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
            except (OSError, TimeoutError):
                await asyncio.sleep(_LISTEN_POLL)
                continue
            writer.close()
            return True
        raise EngineError(
            f"the agent does not listen on 127.0.0.1:{port} after {_LISTEN_TIMEOUT:g} s"
        )

    def _home(self, sandbox_id: str) -> Home:
        return Home(sandbox_id, self._folder / sandbox_id)

    def _enlist(self, home: Home, pid: int, port: int) -> ProcessMachine:
        machine = ProcessMachine(home, pid, port, self._supervisor, self._gone)
        self._machines[home.sandbox_id] = machine
        return machine

    def _gone(self, sandbox_id: str) -> None:
        self._machines.pop(sandbox_id, None)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
