"""Network rules: from what a caller writes to the policy a node enforces, and to and from the
catalog's JSON.

Never accepted and ignored: host names, ``rules`` and ``egressProxy`` are refused by name until they
are built.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from aenv.models.errors import InvalidRequestError, NotBuiltYetError
from aenv.models.sandboxes import NetworkPolicy

MAX_ENTRIES = 256
_HOST = re.compile(r"[A-Za-z0-9.:_${}\[\]-]{1,255}\Z")


@dataclass(frozen=True, slots=True)
class NetworkRequest:
    """The caller's words. ``rules``, ``egress_proxy``, ``https_ports``: given or not, never looked
    into.
    """

    allow_internet: bool | None = None
    allow_out: Sequence[str] = ()
    deny_out: Sequence[str] = ()
    dns_servers: Sequence[str] = ()
    allow_public_traffic: bool = True
    mask_request_host: str | None = None
    rules: Mapping[str, Any] | None = None
    egress_proxy: Mapping[str, Any] | None = field(default=None, repr=False)
    https_ports: Sequence[int] = ()
    prefix: str = "network."


def policy(request: NetworkRequest) -> NetworkPolicy:
    """InvalidRequestError or NotBuiltYetError naming the field."""
    prefix = request.prefix
    if request.rules:
        raise InvalidRequestError(f"{prefix}rules: rules per host are not built yet")
    if request.egress_proxy:
        raise InvalidRequestError(f"{prefix}egressProxy: egress proxies are not built yet")
    if request.https_ports:
        raise NotBuiltYetError(f"{prefix}httpsPorts: https to guest ports is not built yet")
    return NetworkPolicy(
        allow_internet=request.allow_internet is not False,
        allow_out=_targets(request.allow_out, f"{prefix}allowOut", ipv6=False),
        deny_out=_targets(request.deny_out, f"{prefix}denyOut", ipv6=True),
        dns_servers=_addresses(request.dns_servers, f"{prefix}dnsServers"),
        allow_public_traffic=request.allow_public_traffic,
        mask_request_host=_host(request.mask_request_host, f"{prefix}maskRequestHost"),
    )


def with_ingress_of(rules: NetworkPolicy, old: NetworkPolicy) -> NetworkPolicy:
    """``rules`` for what goes out, ``old`` for what comes in."""
    return replace(
        rules,
        allow_public_traffic=old.allow_public_traffic,
        mask_request_host=old.mask_request_host,
    )


def to_json(rules: NetworkPolicy) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(rules).items()
    }


def from_json(content: Mapping[str, Any]) -> NetworkPolicy:
    fields: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in content.items()
    }
    return NetworkPolicy(**fields)


def _targets(entries: Sequence[str], name: str, *, ipv6: bool) -> tuple[str, ...]:
    """Addresses and CIDRs, normalised. IPv6 is denied whatever is written, so denying it needs no
    rule.
    """
    _bounded(entries, name)
    found: list[str] = []
    for entry in entries:
        try:
            network = ipaddress.ip_network(entry, strict=False)
        except ValueError as error:
            raise InvalidRequestError(
                f"{name}: {entry[:253]!r} is not an address or CIDR; host names are not built yet"
            ) from error
        if network.version == 4:
            found.append(str(network))
        elif not ipv6:
            raise InvalidRequestError(f"{name}: {entry!r} is IPv6, which is always denied")
    return tuple(found)


def _addresses(entries: Sequence[str], name: str) -> tuple[str, ...]:
    _bounded(entries, name)
    for entry in entries:
        try:
            ipaddress.IPv4Address(entry)
        except ValueError as error:
            raise InvalidRequestError(f"{name}: {entry[:253]!r} is not an IPv4 address") from error
    return tuple(entries)


def _bounded(entries: Sequence[str], name: str) -> None:
    if len(entries) > MAX_ENTRIES:
        raise InvalidRequestError(f"{name}: {len(entries)} entries, at most {MAX_ENTRIES} go")


def _host(text: str | None, name: str) -> str | None:
    if text is not None and not _HOST.match(text):
        raise InvalidRequestError(f"{name}: {text[:255]!r} is not a host name")
    return text
