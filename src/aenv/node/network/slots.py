"""The slots of one server instance: leased to sandboxes, made ahead, adopted after a restart."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from aenv.models.sandboxes import NetworkPolicy
from aenv.models.settings import Settings
from aenv.node.engine import Finding
from aenv.node.host import Host


@dataclass(frozen=True, slots=True)
class Slot:
    """One place on the network. ``netns`` is the namespace's name, ``host_interface`` the host's end of the pair."""

    index: int
    netns: str
    netns_path: Path
    guest_ip: str
    gateway_ip: str
    prefix_length: int
    host_interface: str


class SlotPool:
    def __init__(self, settings: Settings, host: Host) -> None:
        raise NotImplementedError

    async def start(self) -> None:
        """Load the firewall, keep what sandboxes hold, start filling the pool. Raises HostSetupError."""
        raise NotImplementedError

    async def lease(self, sandbox_id: str) -> Slot:
        """A configured slot under the default policy. CapacityError when the subnet is full."""
        raise NotImplementedError

    async def prepare(self, slot: Slot) -> None:
        """Give the guest's interface its address and route again; needed before every run and restore."""
        raise NotImplementedError

    async def apply(self, slot: Slot, policy: NetworkPolicy) -> None:
        """Replace what the slot may reach, at once and for open connections too. Raises InvalidRequestError."""
        raise NotImplementedError

    async def release(self, slot: Slot) -> None:
        """Give it back; idempotent. The sandbox must have ended."""
        raise NotImplementedError

    async def adopt(self, sandbox_id: str) -> Slot | None:
        """The slot a sandbox held before this server started, its policy untouched."""
        raise NotImplementedError

    async def reap(self, keep: frozenset[str]) -> list[str]:
        """Release the slots of sandboxes not in ``keep`` and remove leftovers; return the sandbox ids."""
        raise NotImplementedError

    async def findings(self) -> list[Finding]:
        """What of this host's network would stop sandboxes, each with its remedy. Changes nothing."""
        raise NotImplementedError

    async def fix(self) -> list[str]:
        """Open foreign firewalls for our slots, marked as ours; return what was done."""
        raise NotImplementedError

    async def unfix(self) -> list[str]:
        """Take back what :meth:`fix` did."""
        raise NotImplementedError

    async def close(self) -> None:
        """Leave slots that sandboxes hold; when none does, remove every trace."""
        raise NotImplementedError
