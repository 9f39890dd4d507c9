"""The slots of one server instance: leased to sandboxes, made ahead, adopted after a restart.

A slot is used once: a released one is taken apart and the pool makes a new one, so nothing of a
sandbox (connections, neighbours, a process that survived) can reach the next. A waiting slot is
configured and admitted under the default policy: leasing it touches neither netlink nor nft.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import time
from collections import deque
from ipaddress import IPv4Address

from aenv.models.egress import Egress, parse, parse_openings, require_openable
from aenv.models.errors import AenvError, ConflictError, HostSetupError, InvalidRequestError
from aenv.models.sandboxes import NetworkPolicy
from aenv.models.settings import Settings
from aenv.node.engine import Finding, Severity
from aenv.node.host import Host
from aenv.node.network import checks, foreign
from aenv.node.network.dns import Forwarder
from aenv.node.network.forwarding import Forwarding
from aenv.node.network.gate import Gate
from aenv.node.network.registry import Claim, Registry
from aenv.node.network.resolvers import Resolvers
from aenv.node.network.rules import Table
from aenv.node.network.slot import Layout, Slot
from aenv.node.network.wiring import Wiring, netns_exists

log = logging.getLogger(__name__)

_RETRY = 5.0
_LULL = 0.5
_CALM = 2.0
"""Seconds a refill waits while slots are left, for so long after one was taken: the processors
belong to the sandbox that took it, or to a server's start.
"""
_CLOSED = Egress(allow_internet=False)

__all__ = ["Slot", "SlotPool"]


class SlotPool:
    def __init__(self, settings: Settings, host: Host) -> None:
        folder, instance = settings.folders.run / "slots", settings.folders.instance
        self._host = host
        self._size = settings.network_slots
        self._openings = parse_openings(settings.egress.private_allow)
        self._layout = Layout.of(instance, settings.subnet)
        self._registry = Registry(
            folder, instance, host.kernel.boot_id(), netns_exists(self._layout, host.links)
        )
        self._wiring = Wiring(self._layout, host.links, self._registry)
        self._forwarding = Forwarding(folder, host, self._registry)
        self._gate = Gate(host.firewall)
        self._names = Forwarder(Resolvers(settings.egress.dns_upstreams))
        self._claims: dict[int, Claim] = {}
        self._leased: dict[str, Slot] = {}
        self._idle: deque[Slot] = deque()
        self._fresh: set[int] = set()
        self._making: set[asyncio.Task[Slot]] = set()
        self._wanted = asyncio.Event()
        self._taken = time.monotonic()
        self._filler: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the firewall, keep what sandboxes hold, start filling the pool.

        Raises HostSetupError (no nft, no netlink, a subnet the host itself uses).
        """
        await asyncio.to_thread(checks.require_free_subnet, self._layout, self._host)
        try:
            port = await self._names.start()
            await asyncio.to_thread(self._registry.open)
            found = await asyncio.to_thread(self._wiring.recover)
            kept = [self._take_back(slot, claim) for slot, claim in found]
            await self._gate.open(self._describe(port), kept)
            await asyncio.to_thread(self._forwarding.enable)
        except BaseException:
            await self._names.close()
            await self._gate.close(remove=False)
            self._registry.close()
            raise
        self._wanted.set()
        self._filler = asyncio.create_task(self._fill(), name="aenv-slots")

    async def lease(self, sandbox_id: str) -> Slot:
        """A configured slot under the default policy. CapacityError when the subnet is full."""
        if sandbox_id in self._leased:
            raise ConflictError(f"Sandbox {sandbox_id} holds a network slot already.")
        slot = self._idle.popleft() if self._idle else await self._make_now()
        try:
            self._write(dataclasses.replace(self._claims[slot.index], sandbox_id=sandbox_id))
        except OSError:
            self._idle.append(slot)
            raise
        self._leased[sandbox_id] = slot
        self._taken = time.monotonic()
        self._wanted.set()
        return slot

    async def prepare(self, slot: Slot) -> None:
        """Give the guest's interface its address and route; needed before every run and restore."""
        if slot.index in self._fresh:
            self._fresh.discard(slot.index)
            return
        await asyncio.to_thread(self._wiring.configure, slot)

    async def apply(self, slot: Slot, policy: NetworkPolicy) -> None:
        """Replace what the slot may reach, at once and for open connections too.

        Raises InvalidRequestError or HostSetupError, and the old policy stays.
        """
        egress = parse(policy, self._openings)
        require_openable(egress, self._openings)
        if egress == self._gate.egress(slot):
            return
        claim = self._claims[slot.index]
        self._write(dataclasses.replace(claim, policy=policy))
        try:
            await self._gate.judge(slot, egress)
        except (AenvError, OSError):
            self._write(claim)
            raise
        self._names.admit(slot.guest_ip, egress)
        if slot.index not in self._fresh:
            await self._cut(slot, egress)

    async def release(self, slot: Slot) -> None:
        """Take it apart; idempotent. The sandbox must have ended."""
        claim = self._claims.pop(slot.index, None)
        if claim is None:
            return
        if claim.sandbox_id is not None:
            self._leased.pop(claim.sandbox_id, None)
        self._names.expel(slot.guest_ip)
        self._fresh.discard(slot.index)
        await asyncio.shield(self._dismantle(slot))

    async def adopt(self, sandbox_id: str) -> Slot | None:
        """The slot a sandbox held before this server started, its policy untouched."""
        return self._leased.get(sandbox_id)

    async def reap(self, keep: frozenset[str]) -> list[str]:
        """Release the slots of sandboxes not in ``keep`` and remove leftovers; return the ids."""
        doomed = {name: slot for name, slot in self._leased.items() if name not in keep}
        await asyncio.gather(*(self.release(slot) for slot in doomed.values()))
        return sorted(doomed)

    async def findings(self) -> list[Finding]:
        """What of this host's network would stop sandboxes, each with its remedy."""
        return await asyncio.to_thread(self._findings)

    async def unfix(self) -> list[str]:
        """Remove the rules of :meth:`findings`' remedies from foreign firewalls; return them."""
        return await asyncio.to_thread(foreign.close_for, self._layout, self._host.firewall)

    async def close(self) -> None:
        """Leave slots that sandboxes hold; when none does, remove every trace."""
        if self._filler is not None:
            self._filler.cancel()
            await asyncio.gather(self._filler, return_exceptions=True)
        await asyncio.gather(*self._making, return_exceptions=True)
        await asyncio.gather(*(self.release(slot) for slot in list(self._idle)))
        self._idle.clear()
        await self._names.close()
        await self._gate.close(remove=not self._leased)
        if not self._leased:
            await asyncio.to_thread(self._forwarding.restore)
        await asyncio.to_thread(self._registry.close)

    def _findings(self) -> list[Finding]:
        found = checks.findings(self._layout, self._host)
        found += checks.bridge_findings(self._bridges_cut_off(), self._forwarding.file)
        try:
            found += foreign.findings(self._layout, self._host.firewall)
        except HostSetupError as error:
            found.append(Finding("firewall", Severity.MISSING, error.message))
        return found

    def _bridges_cut_off(self) -> list[str]:
        return self._host.links.bridges() if self._forwarding.is_remembered() else []

    @property
    def table_name(self) -> str:
        """Our nftables table, as nft names it."""
        return self._gate.table.name

    @property
    def dns_port(self) -> int:
        """Where the DNS forwarder listens on this host."""
        return self._names.port

    def _describe(self, dns_port: int) -> Table:
        return Table(
            self._layout.instance,
            self._layout.interface_prefix,
            self._layout.subnet,
            dns_port,
            self._openings,
            self._forwarding.is_ours(),
            os.geteuid(),
        )

    def _take_back(self, slot: Slot, claim: Claim) -> tuple[Slot, Egress]:
        try:
            egress = parse(claim.policy, self._openings)
        except InvalidRequestError:  # the operator closed what it relied on
            egress = _CLOSED
        self._claims[slot.index] = claim
        if claim.sandbox_id is None:
            self._idle.append(slot)
        else:
            self._leased[claim.sandbox_id] = slot
        self._names.admit(slot.guest_ip, egress)
        return slot, egress

    async def _fill(self) -> None:
        while True:
            await self._wanted.wait()
            try:
                while len(self._idle) < self._size:
                    if self._idle and time.monotonic() < self._taken + _CALM:
                        await asyncio.sleep(_LULL)
                    self._idle.append(await self._make_now())
                self._wanted.clear()
            except (AenvError, OSError) as error:
                log.warning("no network slot could be made ahead: %s", error)
                await asyncio.sleep(_RETRY)

    async def _make_now(self) -> Slot:
        """Make one for a caller; if it goes away meanwhile, the pool gets the slot."""
        task = asyncio.create_task(self._make())
        self._making.add(task)
        task.add_done_callback(self._making.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(self._keep_unclaimed)
            raise

    def _keep_unclaimed(self, task: asyncio.Task[Slot]) -> None:
        if not task.cancelled() and task.exception() is None:
            self._idle.append(task.result())

    async def _make(self) -> Slot:
        slot, claim = await asyncio.to_thread(self._wiring.build)
        try:
            await self._gate.admit(slot)
        except BaseException:
            await asyncio.to_thread(self._wiring.demolish, slot)
            raise
        self._claims[slot.index] = claim
        self._fresh.add(slot.index)
        self._names.admit(slot.guest_ip, Egress())
        return slot

    async def _dismantle(self, slot: Slot) -> None:
        try:
            await self._gate.expel(slot)
        finally:
            await asyncio.to_thread(self._wiring.demolish, slot)
            await self._cut(slot, _CLOSED)

    async def _cut(self, slot: Slot, egress: Egress) -> None:
        """Forget tracked connections that ``egress`` does not permit."""

        def stays(peer: str, port: int) -> bool:
            return egress.permits(IPv4Address(peer), port or None, self._openings)

        try:
            await asyncio.to_thread(self._host.links.forget_connections, slot.guest_ip, stays)
        except OSError as error:
            log.warning("connections of %s are still tracked: %s", slot.guest_ip, error)

    def _write(self, claim: Claim) -> None:
        self._registry.write(claim)
        self._claims[claim.index] = claim
