"""What a request shows to be let in, read from its head once it meets a sandbox without a route."""

from __future__ import annotations

from urllib.parse import parse_qs

from aenv.control.visitors import Signed, Visitor
from aenv.models.sandboxes import AGENT_PORT
from aenv.server.proxy.heads import RequestHead
from aenv.server.proxy.names import ACCESS_TOKEN, TRAFFIC_TOKEN
from aenv.server.proxy.routing import Target

_OPERATIONS = {b"GET": "read", b"HEAD": "read", b"POST": "write"}


def visitor(target: Target, head: RequestHead) -> Visitor:
    traffic_token = head.unique.get(TRAFFIC_TOKEN)
    if target.port != AGENT_PORT:
        return Visitor(target.port, traffic_token)
    path, _, query = target.path.partition(b"?")
    tokens = [value for name, value, _ in head.special if name == ACCESS_TOKEN]
    return Visitor(
        target.port,
        traffic_token,
        access_token=tokens[0] if tokens else None,
        signed=_signed(head.method, query) if path == b"/files" else None,
        probe=path == b"/health" and head.method in (b"GET", b"HEAD"),
    )


def _signed(method: bytes, query: bytes) -> Signed | None:
    operation = _OPERATIONS.get(method)
    found = parse_qs(query.decode("utf-8", "replace"), keep_blank_values=True)
    if operation is None or "signature" not in found:
        return None
    names = ("path", "username", "signature", "signature_expiration")
    path, user, signature, expiration = (found.get(name, [""])[0] for name in names)
    return Signed(path, operation, user, signature, expiration)
