"""Our nouns as the control API spells them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote, urlencode

from aenv.models.sandboxes import NetworkPolicy


def network(policy: NetworkPolicy, *, create: bool = False) -> dict[str, Any]:
    """The body of ``PUT /network``, or the ``network`` field of a create."""
    body: dict[str, Any] = {
        "allowOut": list(policy.allow_out),
        "denyOut": list(policy.deny_out),
        "dnsServers": list(policy.dns_servers),
    }
    if not create:
        return {**body, "allow_internet_access": policy.allow_internet}
    body["allowPublicTraffic"] = policy.allow_public_traffic
    if policy.mask_request_host:
        body["maskRequestHost"] = policy.mask_request_host
    return body


def policy(body: Mapping[str, Any], *, allow_internet: bool) -> NetworkPolicy:
    """What :func:`network` made."""
    return NetworkPolicy(
        allow_internet=allow_internet,
        allow_out=tuple(body.get("allowOut") or ()),
        deny_out=tuple(body.get("denyOut") or ()),
        dns_servers=tuple(body.get("dnsServers") or ()),
        allow_public_traffic=body.get("allowPublicTraffic") is not False,
        mask_request_host=body.get("maskRequestHost"),
    )


def metadata_filter(metadata: Mapping[str, str]) -> str:
    """The value of the query parameter ``metadata``: pairs quoted, then encoded as a query string.

    The HTTP client encodes it once more; the server decodes three times (E2B's clients do this).
    """
    return urlencode({quote(key): quote(value) for key, value in metadata.items()})
