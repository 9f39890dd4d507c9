"""A network policy, parsed: what a sandbox may reach.

Pure; the same rules serve validation, the firewall and DNS.

Order of judgement for one IPv4 destination:

1. private, link-local, metadata, multicast and reserved ranges are closed, unless the operator's
   ``egress.private_allow`` opens them, or the policy's own ``private_out``; what these open is
   judged on like any public address;
2. ``allow_out`` opens (allow beats deny);
3. ``deny_out`` closes;
4. the rest is open when ``allow_internet``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import (
    AddressValueError,
    IPv4Address,
    IPv4Network,
    NetmaskValueError,
    collapse_addresses,
)

from aenv.models.errors import HostSetupError, InvalidRequestError
from aenv.models.sandboxes import NetworkPolicy

MAX_ENTRIES = 1000
EVERYTHING = IPv4Network("0.0.0.0/0")
PRIVATE = tuple(
    IPv4Network(network)
    for network in (
        "0.0.0.0/8",  # this network
        "10.0.0.0/8",  # RFC 1918
        "100.64.0.0/10",  # carrier-grade NAT, cloud-internal services
        "127.0.0.0/8",  # loopback
        "169.254.0.0/16",  # link-local: cloud metadata
        "172.16.0.0/12",  # RFC 1918
        "192.0.0.0/24",  # protocol assignments
        "192.168.0.0/16",  # RFC 1918
        "198.18.0.0/15",  # benchmarking
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
    )
)


@dataclass(frozen=True, slots=True)
class Opening:
    """A private target the operator opened: a network, on one port or on all."""

    network: IPv4Network
    port: int | None = None

    def covers(self, address: IPv4Address, port: int | None) -> bool:
        return address in self.network and self.port in (None, port)


@dataclass(frozen=True, slots=True)
class Egress:
    """A parsed policy: disjoint networks in address order."""

    allow_internet: bool = True
    allow: tuple[IPv4Network, ...] = ()
    deny: tuple[IPv4Network, ...] = ()
    dns_servers: tuple[IPv4Address, ...] = ()
    openings: tuple[Opening, ...] = ()

    @property
    def is_default(self) -> bool:
        return self == Egress()

    @property
    def closed(self) -> bool:
        """Whether nothing but ``allow`` is open."""
        return not self.allow_internet or EVERYTHING in self.deny

    @property
    def resolves_names(self) -> bool:
        """With a closed internet a resolver would be a way out, so there is none unless named."""
        return bool(self.dns_servers) or not self.closed

    def permits(
        self, address: IPv4Address, port: int | None = None, openings: Sequence[Opening] = ()
    ) -> bool:
        """The order of judgement above, for a destination that is no address of the host."""
        opened = (*openings, *self.openings)
        if is_private(address) and not any(opening.covers(address, port) for opening in opened):
            return False
        if port == 53 and address in self.dns_servers:
            return True
        if any(address in network for network in self.allow):
            return True
        return self.allow_internet and not any(address in network for network in self.deny)


def is_private(address: IPv4Address) -> bool:
    return any(address in network for network in PRIVATE)


def parse(policy: NetworkPolicy, openings: Sequence[Opening] = ()) -> Egress:
    """Read a policy. InvalidRequestError names the field of the request that cannot be enforced."""
    return Egress(
        allow_internet=policy.allow_internet,
        allow=_networks("allowOut", policy.allow_out),
        deny=_networks("denyOut", policy.deny_out),
        dns_servers=_resolvers("dnsServers", policy.dns_servers, openings),
        openings=parse_openings(policy.private_out),
    )


def require_openable(egress: Egress, openings: Sequence[Opening]) -> None:
    """InvalidRequestError when ``allow_out`` names a private target that stays closed all the same.

    Apart from :func:`parse`, which must read old policies after an operator closed something.
    """
    for network in egress.allow:
        inside = any(network.subnet_of(private) for private in PRIVATE)
        if inside and not any(network.overlaps(opening.network) for opening in openings):
            raise InvalidRequestError(
                f"network.allowOut: '{network}' is private; only the operator can open it "
                f"(setting egress.private_allow, '{network}')."
            )


def parse_openings(entries: Iterable[str]) -> tuple[Opening, ...]:
    """Read ``egress.private_allow``: ``CIDR`` or ``CIDR:port``. HostSetupError if wrong."""
    return tuple(_opening(entry) for entry in entries)


def _networks(field: str, entries: Sequence[str]) -> tuple[IPv4Network, ...]:
    _bounded(field, entries)
    return tuple(collapse_addresses([_network(field, entry) for entry in entries]))


def _network(field: str, entry: str) -> IPv4Network:
    try:
        return IPv4Network(entry.strip(), strict=False)
    except (AddressValueError, NetmaskValueError, ValueError):
        raise InvalidRequestError(f"network.{field}: {_refusal(entry)}") from None


def _resolvers(
    field: str, entries: Sequence[str], openings: Sequence[Opening]
) -> tuple[IPv4Address, ...]:
    _bounded(field, entries)
    return tuple(dict.fromkeys(_resolver(field, entry, openings) for entry in entries))


def _resolver(field: str, entry: str, openings: Sequence[Opening]) -> IPv4Address:
    try:
        address = IPv4Address(entry.strip())
    except (AddressValueError, ValueError):
        raise InvalidRequestError(f"network.{field}: {_refusal(entry)}") from None
    if is_private(address) and not any(opening.covers(address, 53) for opening in openings):
        raise InvalidRequestError(
            f"network.{field}: {entry!r} is a private address; only the operator can open it "
            f"(setting egress.private_allow, '{address}/32:53')."
        )
    return address


def _refusal(entry: str) -> str:
    if ":" in entry:
        return f"{entry!r} is IPv6 or has a port; name an IPv4 address or CIDR (there is no IPv6)."
    if any(letter.isalpha() for letter in entry):
        return f"{entry!r} is a host name; not enforced yet, so name an IPv4 address or CIDR."
    return f"{entry!r} is no IPv4 address or CIDR, such as '203.0.113.7' or '203.0.113.0/24'."


def _bounded(field: str, entries: Sequence[str]) -> None:
    if len(entries) > MAX_ENTRIES:
        raise InvalidRequestError(
            f"network.{field}: {len(entries)} entries; at most {MAX_ENTRIES} are allowed."
        )


def _opening(entry: str) -> Opening:
    network, colon, port = entry.strip().partition(":")
    try:
        opening = Opening(IPv4Network(network, strict=False), int(port) if colon else None)
    except ValueError:
        opening = None
    if opening is None or (opening.port is not None and not 0 < opening.port < 65536):
        raise HostSetupError(
            f"Setting egress.private_allow: {entry!r} is no CIDR or CIDR:port; write "
            "'10.1.2.0/24' or '10.1.2.3/32:443'."
        )
    return opening
