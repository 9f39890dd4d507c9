"""How sandboxes come to run on a node: made from what they start from, or thawed where they are."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from aenv.models.errors import ConflictError
from aenv.node.guests import nameservers
from aenv.node.launching import Launching
from aenv.node.logs import LogKeeper
from aenv.node.makers import Makers
from aenv.node.pauses import Pauses
from aenv.node.port import SandboxSpec
from aenv.node.residents import Resident, Residents


class Arrivals:
    """``destroy`` ends what a launch has become when its caller goes away."""

    def __init__(
        self,
        residents: Residents,
        pauses: Pauses,
        logs: LogKeeper,
        destroy: Callable[[str], Awaitable[None]],
    ) -> None:
        self._residents = residents
        self._pauses = pauses
        self._logs = logs
        self.launching = Launching(destroy)

    def busy(self) -> bool:
        return len(self.launching) > 0

    async def make(self, makers: Makers, spec: SandboxSpec, *, same_life: bool) -> Resident:
        """Raises what :meth:`Launcher.launch` does, and ConflictError when there is one."""
        if spec.sandbox_id in self.launching or self._residents.get(spec.sandbox_id):
            raise ConflictError(f"sandbox {spec.sandbox_id} exists already")
        launch = self._launch(makers, spec, same_life)
        return await self.launching.run(spec.sandbox_id, spec.template, launch)

    async def thaw(self, makers: Makers, resident: Resident, spec: SandboxSpec) -> bool:
        """Whether it was in memory and runs on."""
        hot = resident.hot
        if spec.reboot and hot and hot.snapshot_id and await self._pauses.demote(spec.sandbox_id):
            return False

        async def refresh(resident: Resident) -> None:
            await resident.machine.set_network(spec.network)
            init = makers.machines.refreshed(spec, resident, away)
            resident.failures = await resident.agent.init(init)
            resident.nameservers = nameservers(spec.network, resident.machine.guest_network)

        away = time.monotonic() - hot.since if hot else 0.0
        return await self._pauses.thaw(resident, refresh)

    async def _launch(self, makers: Makers, spec: SandboxSpec, same_life: bool) -> Resident:
        async with makers.pools.taken(spec) as waiting:
            launch = makers.launcher.launch(spec, same_life=same_life, waiting=waiting)
            resident = await launch
        resident.nameservers = nameservers(spec.network, resident.machine.guest_network)
        self._residents.settle(resident, spec.resources)
        for failure in resident.failures:
            await self._logs.note(spec.sandbox_id, failure, level="error")
        if resident.note:
            await self._logs.note(spec.sandbox_id, resident.note, level="warn")
        return resident
