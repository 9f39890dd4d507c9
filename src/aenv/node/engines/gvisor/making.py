"""Making one machine: a slot, a disk and cgroups at once, then runsc; or taking all of it back."""

from __future__ import annotations

import asyncio
from pathlib import Path

from aenv.models.errors import ConflictError, ImageUnusableError
from aenv.node.disks.pool import Disk
from aenv.node.engine import Bind, MachineSpec, MemoryImage
from aenv.node.engines.gvisor import images
from aenv.node.engines.gvisor.bundle import Facts
from aenv.node.engines.gvisor.commands import Runsc
from aenv.node.engines.gvisor.config import oci_config
from aenv.node.engines.gvisor.guestfolder import (
    guest_folder,
    keep_tmp_on_disk,
    make_mount_points,
)
from aenv.node.engines.gvisor.images import ImageFacts
from aenv.node.engines.gvisor.parts import Parts
from aenv.node.engines.tasks import finish, first_failure
from aenv.node.network.slots import Slot
from aenv.node.runsc import pin
from aenv.node.volumes.store import name_of


class Making:
    """``boots`` bounds how many start at a time. After :meth:`run` its parts are there to take."""

    def __init__(self, parts: Parts, spec: MachineSpec, boots: asyncio.Semaphore) -> None:
        self._parts = parts
        self._spec = spec
        self._boots = boots
        self._image: MemoryImage | None = None
        self._remembered: ImageFacts | None = None
        self.bundle = parts.bundle(spec.sandbox_id)
        self.runsc = parts.runsc
        self.slot: Slot | None = None
        self.disk: Disk | None = None
        self._volumes: tuple[Bind, ...] = ()
        self.facts = Facts()

    async def run(self, image: MemoryImage | None) -> None:
        """Boot or restore. Whatever fails or cancels it, and when, everything made is taken
        back.
        """
        if image is not None:
            self.runsc = await self._runsc_for(image)
            self._remembered = await asyncio.to_thread(images.read_facts, image.path)
            self._image = image
        self._make_bundle()
        try:
            await self._gather()
            await asyncio.to_thread(self._write)
            async with self._boots:
                await finish(self._start())
            await self._parts.watch(self.bundle)
        except BaseException as error:
            await finish(self._parts.clear(self.bundle, self.slot, self.disk))
            if isinstance(error, ExceptionGroup):
                raise first_failure(error) from error
            raise

    async def _runsc_for(self, image: MemoryImage) -> Runsc:
        found = None
        if image.engine == "gvisor":
            found = await self._parts.runsc_of(image.engine_version)
        if found is None:
            raise ImageUnusableError(
                f"the memory image was made by {image.engine} {image.engine_version}, which is not"
                f" on this host any more; it runs gvisor {pin.VERSION}. Start from its disk instead"
            )
        return found

    def _make_bundle(self) -> None:
        """Two small files in the run folder: not worth a thread."""
        goes_on = self._remembered if self._spec.same_life else None
        try:
            self.bundle.make(goes_on.boot_id if goes_on else None)
        except FileExistsError:
            name = self._spec.sandbox_id
            raise ConflictError(f"a machine {name} exists on this host") from None

    async def _gather(self) -> None:
        parts, spec = self._parts, self._spec

        async def lease() -> None:
            self.slot = await parts.slots.lease(spec.sandbox_id)
            await parts.slots.apply(self.slot, spec.network)

        async def create_disk() -> None:
            self.disk = await parts.disks.create(
                spec.sandbox_id,
                spec.rootfs.lowers,
                spec.resources.disk_mb,
                source=spec.disk.name if spec.disk else None,
            )
            await asyncio.to_thread(keep_tmp_on_disk, self.disk.merged)
            if spec.volumes:
                paths = [one.path for one in spec.volumes]
                await asyncio.to_thread(make_mount_points, self.disk.merged, paths)

        async def attach_volumes() -> None:
            source = spec.disk.name if spec.disk else None
            found = await parts.disks.volumes.attach(
                spec.sandbox_id, spec.volumes, source, spec.resources.disk_mb
            )
            self._volumes = tuple(
                Bind(found[one.path].content, one.path, read_only=one.read_only)
                for one in spec.volumes
            )

        async with asyncio.TaskGroup() as group:
            if spec.volumes:
                group.create_task(finish(attach_volumes()))
            group.create_task(finish(lease()))
            group.create_task(finish(create_disk()))
            if parts.cgroups.available:
                group.create_task(finish(parts.cgroups.create(spec.sandbox_id, spec.resources)))

    def _write(self) -> None:
        parts, spec = self._parts, self._spec
        assert self.slot is not None
        assert self.disk is not None
        limited = parts.cgroups.available
        config = oci_config(
            spec,
            root=self.disk.merged,
            guest_folder=self._guest_folder(),
            boot_id=self.bundle.boot_id,
            netns=self.slot.netns_path,
            cgroup=parts.cgroups.oci(spec.sandbox_id, spec.resources) if limited else {},
            shared_memory_mb=self._shared_memory_mb(),
            volumes=self._volumes,
        )
        release = self._image.engine_version if self._image else pin.VERSION
        written = {
            one.volume_id: name_of(spec.sandbox_id, one)
            for one in spec.volumes
            if not one.read_only
        }
        self.facts = Facts(spec.resources, spec.network.dns_servers, release, written)
        self.bundle.write_config(config)
        self.bundle.write_facts(self.facts)

    def _shared_memory_mb(self) -> int:
        """Half of the memory, as on Linux: a program that fills it meets ENOSPC, not the end of
        the sandbox. A restored guest keeps what it was booted with, runsc insists.
        """
        if self._remembered is not None:
            return self._remembered.shared_memory_mb
        return self._spec.resources.memory_mb // 2

    def _guest_folder(self) -> Path:
        store, spec = self._parts.guest_store, self._spec
        if self._image is None or self._remembered is None:
            return guest_folder(store, spec.agent, host_ca=spec.host_ca)
        return images.restored_guest_folder(store, self._image.path, self._remembered)

    async def _start(self) -> None:
        assert self.slot is not None
        await self._parts.slots.prepare(self.slot)
        if self._image is None:
            await self.runsc.run(self.bundle)
        else:
            more = bool(self._volumes)
            await self.runsc.restore(self.bundle, self._image.path, more_mounts=more)
