"""One gVisor machine."""

from __future__ import annotations

import asyncio
import logging
import shutil
from asyncio import Future, Task
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from aenv.models.errors import ConflictError, Culprit, EngineError
from aenv.models.sandboxes import NetworkPolicy, SandboxExit
from aenv.node.disks.pool import Disk
from aenv.node.engine import (
    Address,
    DiskImage,
    ExecResult,
    GuestNetwork,
    Machine,
    MachineStats,
    MemoryImage,
)
from aenv.node.engines.gvisor import exits, images
from aenv.node.engines.gvisor.bundle import Bundle, Facts
from aenv.node.engines.gvisor.commands import Runsc
from aenv.node.engines.gvisor.config import AGENT_ARGV
from aenv.node.engines.gvisor.control import ControlSocket, ControlUnreachableError
from aenv.node.engines.gvisor.fingerprint import cpu_features
from aenv.node.engines.gvisor.parts import Parts, gofer_key
from aenv.node.engines.tasks import finish
from aenv.node.network.slots import Slot
from aenv.node.runsc import pin
from aenv.node.supervisor.client import Ending

log = logging.getLogger(__name__)

_RETRY = 1.0
_PROBE_TIMEOUT = 20.0
"""Generous: a slow machine that is taken for a frozen one would be thawed, and die of it."""


class GVisorMachine(Machine):
    """Owns its bundle, slot and disk until :meth:`destroy`. ``on_gone`` is called after that."""

    def __init__(
        self,
        parts: Parts,
        bundle: Bundle,
        facts: Facts,
        slot: Slot | None,
        disk: Disk | None,
        runsc: Runsc,
        on_gone: Callable[[str], None],
    ) -> None:
        self.sandbox_id = bundle.sandbox_id
        self._parts = parts
        self._bundle = bundle
        self._facts = facts
        self._slot = slot
        self._disk = disk
        self._runsc = runsc
        self._release = facts.runsc or pin.VERSION
        self._on_gone = on_gone
        self._exit: Future[SandboxExit] = asyncio.get_running_loop().create_future()
        self._follower = asyncio.create_task(self._follow(), name=f"exit-{self.sandbox_id}")
        self._destruction: Task[None] | None = None
        self._control = ControlSocket(
            self.sandbox_id,
            str(bundle.read_control_path()),
            same_release=self._release == pin.VERSION,
        )
        self._freezing = asyncio.Lock()

    def address(self, port: int) -> Address:
        return Address(self._held_slot.guest_ip, port)

    @property
    def guest_network(self) -> GuestNetwork | None:
        if self._slot is None:
            return None
        nameservers = self._facts.nameservers or (self._slot.gateway_ip,)
        return GuestNetwork(self._slot.guest_ip, nameservers)

    @property
    def frozen(self) -> bool:
        return self._bundle.read_frozen() is not False

    async def wait(self) -> SandboxExit:
        return await asyncio.shield(self._exit)

    async def exec(self, argv: Sequence[str], *, timeout: float = 30) -> ExecResult:
        self._require_alive()
        if self.frozen:
            raise ConflictError(f"sandbox {self.sandbox_id} is frozen; thaw it first")
        try:
            return await self._control.execute(argv, {"HOME": "/root"}, timeout)
        except ControlUnreachableError:
            self._require_alive()
            return await self._runsc.execute(self._bundle, argv, timeout)

    async def freeze(self) -> None:
        async with self._freezing:
            self._require_alive()
            if not self.frozen:
                self._bundle.mark_frozen(None)
                await finish(self._pause())
                self._bundle.mark_frozen(True)

    async def thaw(self) -> None:
        async with self._freezing:
            self._require_alive()
            if self.frozen:
                self._bundle.mark_frozen(None)
                await finish(self._resume())
                self._bundle.mark_frozen(False)

    async def resolve(self) -> None:
        """Find out whether it is frozen if a server died while it changed that: gVisor does not
        tell, and dies of being thawed once too often. In a frozen machine no program ends.
        """
        if self._bundle.read_frozen() is not None or self._exit.done():
            return
        try:
            await self._control.execute([*AGENT_ARGV, "--version"], {}, _PROBE_TIMEOUT)
        except EngineError:
            self._bundle.mark_frozen(True)
        else:
            self._bundle.mark_frozen(False)

    async def checkpoint(self, destination: Path) -> MemoryImage:
        async with self._freezing:
            self._require_alive()
            if not self.frozen:
                raise ConflictError(f"sandbox {self.sandbox_id} must be frozen before a checkpoint")
            partial = destination.with_name(f".{destination.name}.partial")
            try:
                await asyncio.to_thread(_make_empty, partial, destination)
                await self._write_image(partial)
                await self._require_files()
                await asyncio.to_thread(partial.rename, destination)
            except BaseException as error:
                await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
                if isinstance(error, OSError):
                    raise images.write_failure(error, destination) from error
                raise
        return MemoryImage(destination, "gvisor", self._release, cpu_features())

    async def sync(self) -> None:
        self._require_alive()
        await self._parts.disks.sync(self.sandbox_id)

    async def save_disk(self, name: str, *, volumes: bool = False) -> DiskImage:
        kept = self._facts.volumes if volumes else {}
        return await finish(self._parts.disks.save(self.sandbox_id, name, kept))

    async def stats(self) -> MachineStats:
        self._require_alive()
        used = await self._parts.cgroups.stats(self.sandbox_id)
        disk = self._held_disk.usage()
        return MachineStats(
            cpu_seconds=used.cpu_seconds,
            memory_bytes=used.memory_bytes,
            processes=await self._count_processes(),
            disk_used_bytes=disk.used_bytes,
            disk_limit_bytes=disk.limit_bytes,
        )

    async def memory_used(self) -> int:
        self._require_alive()
        return (await self._parts.cgroups.stats(self.sandbox_id)).memory_bytes

    async def set_network(self, policy: NetworkPolicy) -> None:
        self._require_alive()
        await self._parts.slots.apply(self._held_slot, policy)

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
        await self._parts.clear(self._bundle, self._slot, self._disk)
        self._follower.cancel()
        self._on_gone(self.sandbox_id)

    async def _follow(self) -> None:
        """Turn the end of the sandbox process into a typed exit."""
        ending = await self._ending()
        if self._exit.done():
            return
        console = b""
        with suppress(EngineError):
            console = await self._parts.supervisor.output(self.sandbox_id)
        bundle = self._bundle
        outcome = exits.classify(
            self.sandbox_id,
            ending,
            gofer=await self._gofer_ending(),
            oom_kills=await self._oom_kills(),
            panic=bundle.text(bundle.panic_log),
            log=bundle.text(bundle.runsc_log),
            console=console.decode(errors="replace"),
            resources=self._facts.resources,
        )
        if not self._exit.done():
            self._exit.set_result(outcome)

    async def _ending(self) -> Ending:
        while True:
            try:
                return await self._parts.supervisor.wait(self.sandbox_id)
            except EngineError as error:
                log.warning("cannot follow %s, trying again: %s", self.sandbox_id, error)
                await asyncio.sleep(_RETRY)

    async def _oom_kills(self) -> int:
        try:
            return (await self._parts.cgroups.stats(self.sandbox_id)).oom_kills
        except EngineError:
            return 0

    async def _write_image(self, folder: Path) -> None:
        """runsc writes its files, and we ours beside it."""
        facts = asyncio.ensure_future(asyncio.to_thread(images.add_facts, self._bundle, folder))
        try:
            await images.write(self._control, self._runsc, self._bundle, folder)
        finally:
            (failure,) = await asyncio.gather(facts, return_exceptions=True)
        if failure is not None:
            raise failure

    async def _require_files(self) -> None:
        """A guest whose file server died first is about to end; its image would be of no use."""
        if await self._gofer_ending() is not None:
            raise EngineError(f"the file server of sandbox {self.sandbox_id} has ended")

    async def _gofer_ending(self) -> Ending | None:
        with suppress(EngineError):
            gofer = await self._parts.supervisor.status(gofer_key(self.sandbox_id))
            return None if gofer is None else gofer.ending
        return None

    async def _count_processes(self) -> int:
        try:
            return len(await self._control.processes())
        except EngineError:
            return 0

    async def _pause(self) -> None:
        try:
            await self._control.pause()
        except ControlUnreachableError:
            await self._runsc.pause(self._bundle)

    async def _resume(self) -> None:
        try:
            await self._control.resume()
        except ControlUnreachableError:
            await self._runsc.resume(self._bundle)

    def _require_alive(self) -> None:
        if self._exit.done():
            raise EngineError(f"sandbox {self.sandbox_id} has ended: {self._exit.result().reason}")

    @property
    def _held_slot(self) -> Slot:
        if self._slot is None:
            raise EngineError(f"sandbox {self.sandbox_id} has lost its network slot")
        return self._slot

    @property
    def _held_disk(self) -> Disk:
        if self._disk is None:
            raise EngineError(f"sandbox {self.sandbox_id} has lost its disk")
        return self._disk


def _make_empty(folder: Path, destination: Path) -> None:
    if destination.exists():
        raise ConflictError(f"{destination} exists; a memory image is written only once")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700, parents=True)
