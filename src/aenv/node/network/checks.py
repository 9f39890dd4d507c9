"""Does the sandboxes' subnet collide with what this host uses itself?"""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path

from aenv.models.errors import HostSetupError
from aenv.node.engine import Finding, Severity
from aenv.node.host import Host, Links, Route
from aenv.node.network.slot import INTERFACE_PREFIX, Layout, Slot

_CANDIDATES = (93, 201, 217, 233, 249)


def require_free_subnet(layout: Layout, host: Host) -> None:
    """HostSetupError when the host has a route of its own inside the subnet."""
    collisions = _routes_inside(layout, host.links)
    if collisions:
        network, interface = collisions[0]
        raise HostSetupError(_collision(layout, network, interface))


def findings(layout: Layout, host: Host) -> list[Finding]:
    found = [
        Finding(
            "network",
            Severity.MISSING,
            _collision(layout, network, interface),
            _another_subnet(host.links),
        )
        for network, interface in _routes_inside(layout, host.links)
    ]
    found += [
        Finding(
            "network",
            Severity.WARNING,
            f"the host reaches {network} through {interface}, sandboxes use {layout.subnet} of it",
            _another_subnet(host.links),
        )
        for network, interface in host.links.routes()
        if layout.subnet.subnet_of(network) and network != layout.subnet and _is_foreign(interface)
    ]
    return found or [
        Finding("network", Severity.OK, f"the subnet {layout.subnet} is free on this host")
    ]


def bridge_findings(bridges: list[str], remembered: Path) -> list[Finding]:
    """``bridges``: those of others that only our guard keeps from forwarding, which
    ``remembered`` (a file) is the reason for.
    """
    return [
        Finding(
            "network",
            Severity.WARNING,
            f"forwarding was off before aenv and is on for sandboxes only: {bridge} has no network",
            f"rm -f {remembered}; aenv down --keep; aenv up",
        )
        for bridge in bridges
    ]


def taken_networks(layout: Layout, links: Links) -> set[IPv4Network]:
    """Slots that others hold although the registry does not know (another run folder)."""
    return {
        network
        for network, interface in links.routes()
        if network.subnet_of(layout.subnet) and not interface.startswith(layout.interface_prefix)
    }


def is_alone(slot: Slot, links: Links) -> bool:
    """Whether nobody else took the same addresses at the same moment."""
    return all(
        interface == slot.host_interface
        for network, interface in links.routes()
        if network == slot.guest.network
    )


def _routes_inside(layout: Layout, links: Links) -> list[Route]:
    return [
        route
        for route in links.routes()
        if route.network.subnet_of(layout.subnet) and _is_foreign(route.interface)
    ]


def _is_foreign(interface: str) -> bool:
    return not interface.startswith(INTERFACE_PREFIX)


def _collision(layout: Layout, network: IPv4Network, interface: str) -> str:
    return (
        f"This host uses {network} on {interface}, inside the sandboxes' subnet {layout.subnet}. "
        "Choose another private range: aenv config set subnet 10.201.0.0/16"
    )


def _another_subnet(links: Links) -> str | None:
    """The command that moves sandboxes to a range this host does not use; None if all are used."""
    used = [network for network, interface in links.routes() if _is_foreign(interface)]
    for second in _CANDIDATES:
        candidate = IPv4Network(f"10.{second}.0.0/16")
        if not any(candidate.overlaps(network) for network in used if network.prefixlen):
            return f"aenv config set subnet {candidate}"
    return None
