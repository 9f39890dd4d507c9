"""What all machines of one instance share, and the one way in which every trace of a machine
goes.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aenv.models.errors import EngineError
from aenv.node.disks.pool import Disk, DiskPool
from aenv.node.engines.gvisor.bundle import Bundle
from aenv.node.engines.gvisor.commands import Runsc
from aenv.node.host.cgroups import Cgroups
from aenv.node.network.slots import Slot, SlotPool
from aenv.node.runsc import pin
from aenv.node.runsc.finder import version_of
from aenv.node.supervisor.client import SupervisorClient

_DEATH_TIMEOUT = 30.0


def gofer_key(sandbox_id: str) -> str:
    """The supervisor's key of a machine's file server; the sandbox process itself has the sandbox
    id.
    """
    return f"{sandbox_id}/gofer"


@dataclass(frozen=True, slots=True)
class Parts:
    supervisor: SupervisorClient
    runsc: Runsc
    slots: SlotPool
    disks: DiskPool
    cgroups: Cgroups
    machines: Path
    runsc_root: Path
    guest_store: Path
    releases: Path

    async def runsc_of(self, release: str) -> Runsc | None:
        """The runsc that made a machine or an image, if it is still there ("": the pinned one)."""
        if release in ("", pin.VERSION):
            return self.runsc
        binary = self.releases / release / "runsc"
        if await version_of(binary) != release:
            return None
        return Runsc(binary, self.supervisor, limits=self.cgroups.available)

    def bundle(self, sandbox_id: str) -> Bundle:
        return Bundle(sandbox_id, self.machines / sandbox_id, self.runsc_root)

    async def watch(self, bundle: Bundle) -> None:
        """Have the supervisor follow the processes that runsc has just left behind."""
        state = await asyncio.to_thread(bundle.read_state)
        pid = _pid(state.get("sandbox"), "pid")
        if pid is None:
            raise EngineError(f"runsc left no state of {bundle.sandbox_id} in {bundle.state}")
        gofer = _pid(state, "goferPid")
        outcomes = await asyncio.gather(
            self.supervisor.watch(bundle.sandbox_id, pid, console=bundle.console),
            self.supervisor.watch(gofer_key(bundle.sandbox_id), gofer) if gofer else _nothing(),
            return_exceptions=True,
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    async def clear(self, bundle: Bundle, slot: Slot | None, disk: Disk | None) -> None:
        """End the machine's processes, then give back everything it holds. Safe to repeat.

        All is tried; the first failure is raised at the end.
        """
        failures: list[BaseException] = []
        await _collect(failures, self._kill(bundle))
        if self.cgroups.available:
            await _collect(failures, self.cgroups.destroy(bundle.sandbox_id))
        await asyncio.gather(
            _collect(failures, self.slots.release(slot)) if slot else _nothing(),
            _collect(failures, disk.destroy()) if disk else _nothing(),
        )
        if not failures:
            await _collect(failures, self._forget(bundle))
            await asyncio.to_thread(bundle.remove)
        if failures:
            raise failures[0]

    async def _kill(self, bundle: Bundle) -> None:
        """Kill until nothing is left: a runsc that dies while it starts a sandbox leaves more."""
        try:
            async with asyncio.timeout(_DEATH_TIMEOUT):
                complete = await self._kill_known(bundle)
                while not complete and (pids := await asyncio.to_thread(_strays, bundle)):
                    await self._watch_strays(bundle, pids)
                    await self._kill_known(bundle)
        except TimeoutError:
            raise EngineError(
                f"processes of {bundle.sandbox_id} outlived SIGKILL by {_DEATH_TIMEOUT:g} s"
            ) from None

    async def _kill_known(self, bundle: Bundle) -> bool:
        """False if the sandbox process itself was never watched: then there may be strays."""
        keys = await self._keys(bundle)
        for key in keys:
            await self.supervisor.signal(key, signal.SIGKILL)
        await asyncio.gather(*(self.supervisor.wait(key) for key in keys))
        return bundle.sandbox_id in keys

    async def _watch_strays(self, bundle: Bundle, pids: list[int]) -> None:
        known = await self._keys(bundle)
        for key, pid in ((f"{bundle.sandbox_id}/{pid}", pid) for pid in pids):
            if key not in known:
                await self.supervisor.watch(key, pid)

    async def _keys(self, bundle: Bundle) -> list[str]:
        return [
            record.key
            for record in await self.supervisor.records()
            if record.key.partition("/")[0] == bundle.sandbox_id
        ]

    async def _forget(self, bundle: Bundle) -> None:
        for key in await self._keys(bundle):
            await self.supervisor.forget(key)
        await self.supervisor.drop_console(bundle.console)


def _pid(found: Any, name: str) -> int | None:
    value = found.get(name) if isinstance(found, dict) else None
    return value if isinstance(value, int) and value > 0 else None


def _strays(bundle: Bundle) -> list[int]:
    """Processes whose command line names our runsc root and this machine."""
    root, name = f"--root={bundle.runsc_root}".encode(), bundle.sandbox_id.encode()
    found = []
    for entry in os.scandir("/proc"):
        if not entry.name.isdigit():
            continue
        try:
            words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if root in words and any(word.endswith(name) for word in words):
            found.append(int(entry.name))
    return found


async def _collect(failures: list[BaseException], step: Awaitable[None]) -> None:
    try:
        await step
    except Exception as error:  # noqa: BLE001  the other steps must run; it is raised after them
        failures.append(error)


async def _nothing() -> None:
    return None
