"""Making gVisor machines: a slot, a disk and cgroups at once, then runsc; and taking all of it
back.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from contextlib import AsyncExitStack
from pathlib import Path

from aenv.models.errors import (
    AenvError,
    EngineError,
    HostSetupError,
    ImageUnusableError,
    NotFoundError,
)
from aenv.models.settings import Settings
from aenv.node.disks.pool import Disk, DiskPool
from aenv.node.engine import (
    Capabilities,
    DiskImage,
    Engine,
    Finding,
    Isolation,
    Machine,
    MachineSpec,
    MemoryImage,
    Severity,
)
from aenv.node.engines.folders import subfolders
from aenv.node.engines.gvisor.bundle import Bundle, Facts
from aenv.node.engines.gvisor.commands import Runsc
from aenv.node.engines.gvisor.fingerprint import cpu_features
from aenv.node.engines.gvisor.machine import GVisorMachine
from aenv.node.engines.gvisor.making import Making
from aenv.node.engines.gvisor.parts import Parts
from aenv.node.engines.tasks import first_failure
from aenv.node.host import Host, open_host
from aenv.node.host.cgroups import Cgroups
from aenv.node.network.slots import Slot, SlotPool
from aenv.node.runsc import Runsc as Found
from aenv.node.runsc import find, keep, pin
from aenv.node.runsc.finder import releases
from aenv.node.supervisor.client import SupervisorClient
from aenv.node.volumes.store import VolumeStore
from aenv.store.private import make_private

log = logging.getLogger(__name__)

_BOOTS_PER_CPU = 4
"""A start waits for the kernel half of its time: with fewer at once a burst takes longer."""
_OVERHEAD_MB = 64
"""What sentry and gofer use of a sandbox's memory limit, on top of the guest."""


class GVisorEngine(Engine):
    capabilities = Capabilities(
        engine="gvisor",
        isolation=Isolation.KERNEL,
        needs_root=True,
        limits=True,
        network_isolation=True,
        egress_policy=True,
        orphan_control=True,
        freeze=True,
        memory_snapshot=True,
        live_fork=True,
        disk_snapshot=True,
        volumes=True,
    )

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._machine_folder = settings.folders.instance_run / "gvisor" / "machines"
        self._guest_store = settings.folders.data / "gvisor" / "guest"
        self._boots = asyncio.Semaphore(_BOOTS_PER_CPU * (os.cpu_count() or 1))
        self._machines: dict[str, GVisorMachine] = {}
        self._open: Parts | None = None
        self._host: Host | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def memory_format(self) -> str:
        return f"{pin.VERSION} {cpu_features()}"

    async def probe(self) -> list[Finding]:
        try:
            host = await asyncio.to_thread(open_host, self._settings)
        except HostSetupError as error:
            return [Finding("gvisor", Severity.MISSING, error.message)]
        try:
            findings = host.findings()
            findings += Cgroups(self._settings.folders.instance).findings()
            findings += await SlotPool(self._settings, host).findings()
            findings += await DiskPool(self._settings, host).findings()
        finally:
            host.close()
        return [await self._probe_runsc(), *findings]

    async def start(self) -> None:
        if self._open is not None:
            return
        runsc = await find(self._settings.folders)
        async with AsyncExitStack() as undo:
            host = await asyncio.to_thread(open_host, self._settings)
            undo.callback(host.close)
            await asyncio.to_thread(self._tidy, host.kernel.boot_id())
            supervisor = SupervisorClient(self._settings.folders.instance_run)
            undo.push_async_callback(supervisor.close)
            slots, disks = SlotPool(self._settings, host), DiskPool(self._settings, host)
            undo.push_async_callback(slots.close)
            undo.push_async_callback(disks.close)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(supervisor.start())
                    group.create_task(slots.start())
                    group.create_task(disks.start())
            except ExceptionGroup as error:
                raise first_failure(error) from error
            cgroups = Cgroups(self._settings.folders.instance, overhead_mb=_OVERHEAD_MB)
            self._open = Parts(
                supervisor=supervisor,
                runsc=Runsc(runsc.path, supervisor, limits=cgroups.available),
                slots=slots,
                disks=disks,
                cgroups=cgroups,
                machines=self._machine_folder,
                runsc_root=self._settings.folders.instance_run / "runsc",
                guest_store=self._guest_store,
                releases=releases(self._settings.folders),
            )
            self._host = host
            self._keeping = asyncio.create_task(self._keep_release(runsc), name="keep-runsc")
            undo.pop_all()

    @property
    def volumes(self) -> VolumeStore | None:
        return None if self._open is None else self._open.disks.volumes

    async def disk_room(self) -> int | None:
        return None if self._open is None else await self._open.disks.room()

    async def close(self) -> None:
        parts, self._open = self._open, None
        if parts is None:
            return
        if self._keeping is not None:
            self._keeping.cancel()
            await asyncio.gather(self._keeping, return_exceptions=True)
        for machine in self._machines.values():
            machine.let_go()
        self._machines.clear()
        async with AsyncExitStack() as leave:
            if self._host is not None:
                leave.callback(self._host.close)
            leave.push_async_callback(parts.supervisor.close)
            leave.push_async_callback(parts.supervisor.retire)
            leave.push_async_callback(parts.cgroups.close)
            leave.push_async_callback(parts.disks.close)
            leave.push_async_callback(parts.slots.close)

    async def boot(self, spec: MachineSpec) -> Machine:
        return await self._make(spec, None)

    async def restore(self, spec: MachineSpec, image: MemoryImage) -> Machine:
        if image.cpu_features not in ("", cpu_features()):
            raise ImageUnusableError("the memory image was made on a CPU with other features")
        return await self._make(spec, image)

    async def disk_images(self) -> list[DiskImage]:
        return await self._parts.disks.images()

    async def drop_disk(self, name: str) -> None:
        await self._parts.disks.drop(name)

    async def disk_tree(self, name: str) -> Path:
        return await self._parts.disks.tree(name)

    async def verify_disk(self, name: str) -> None:
        await self._parts.disks.verify(name)

    async def adopt(self, sandbox_id: str) -> Machine:
        if sandbox_id in self._machines:
            return self._machines[sandbox_id]
        parts = self._parts
        bundle = parts.bundle(sandbox_id)
        if not await asyncio.to_thread(bundle.facts.exists):
            raise NotFoundError(
                f"its machine {sandbox_id} is gone, as all are after a restart of the host"
            )
        if await parts.supervisor.status(sandbox_id) is None:
            await parts.watch(bundle)
        slot = await parts.slots.adopt(sandbox_id)
        disk = await parts.disks.open(sandbox_id)
        facts = await asyncio.to_thread(bundle.read_facts)
        runsc = await parts.runsc_of(facts.runsc) or parts.runsc
        machine = self._enlist(bundle, facts, slot, disk, runsc)
        await machine.resolve()
        return machine

    async def reap(self, keep: frozenset[str]) -> list[str]:
        parts = self._parts
        found = await asyncio.to_thread(subfolders, parts.machines)
        found |= {record.key.partition("/")[0] for record in await parts.supervisor.records()}
        found -= {name for name in found if name.startswith("process-")}
        doomed = sorted(found - keep)
        await asyncio.gather(*(self._reap_one(name) for name in doomed))
        more = set(await parts.slots.reap(keep)) | set(await parts.disks.reap(keep))
        if parts.cgroups.available:
            more |= set(await parts.cgroups.reap(keep))
        return sorted({*doomed, *more})

    async def _reap_one(self, sandbox_id: str) -> None:
        if sandbox_id in self._machines:
            await self._machines[sandbox_id].destroy()
            return
        parts = self._parts
        slot = await parts.slots.adopt(sandbox_id)
        await parts.clear(parts.bundle(sandbox_id), slot, await parts.disks.open(sandbox_id))

    async def _make(self, spec: MachineSpec, image: MemoryImage | None) -> Machine:
        making = Making(self._parts, spec, self._boots)
        await making.run(image)
        return self._enlist(making.bundle, making.facts, making.slot, making.disk, making.runsc)

    def _enlist(
        self, bundle: Bundle, facts: Facts, slot: Slot | None, disk: Disk | None, runsc: Runsc
    ) -> GVisorMachine:
        machine = GVisorMachine(self._parts, bundle, facts, slot, disk, runsc, self._gone)
        self._machines[bundle.sandbox_id] = machine
        return machine

    def _gone(self, sandbox_id: str) -> None:
        self._machines.pop(sandbox_id, None)

    def _tidy(self, boot_id: str) -> None:
        """After a reboot nothing of the run folder is true; without machines no agent is in use."""
        run = self._settings.folders.instance_run
        marker = run / "boot_id"
        make_private(run)
        if not marker.exists() or marker.read_text() != boot_id:
            for name in ("gvisor", "runsc"):
                shutil.rmtree(run / name, ignore_errors=True)
            marker.write_text(boot_id)
        if not subfolders(self._machine_folder):
            shutil.rmtree(self._guest_store, ignore_errors=True)

    async def _keep_release(self, runsc: Found) -> None:
        try:
            await keep(self._settings.folders, runsc)
        except (AenvError, OSError) as error:
            log.warning("runsc %s is not kept for memory images: %s", runsc.version, error)

    async def _probe_runsc(self) -> Finding:
        try:
            found = await find(self._settings.folders)
        except HostSetupError as error:
            return Finding("runsc", Severity.MISSING, error.message, "aenv setup --no-base")
        return Finding("runsc", Severity.OK, f"{found.version} ({found.origin}: {found.path})")

    @property
    def _parts(self) -> Parts:
        if self._open is None:
            raise EngineError("the gvisor engine is not started")
        return self._open
