"""The heads we write: to guests without our credentials and with our framing, to clients with our
framing."""

from __future__ import annotations

from collections.abc import Callable, Container

from aenv.server.proxy.heads import (
    ACCESS_TOKEN,
    AUTHORIZATION,
    EXPECT,
    ROUTING,
    TE,
    RequestHead,
    ResponseHead,
)
from aenv.server.proxy.routing import Target

IsCredential = Callable[[str], bool]

_PASSED = ROUTING | {EXPECT}
_BODILESS = frozenset({204, 304})


def guest_head(
    head: RequestHead,
    target: Target,
    *,
    upgrade: bool,
    mask_host: str | None,
    access_token_ports: Container[int],
    is_credential: IsCredential,
) -> bytes:
    """The request head a guest gets. Hop-by-hop headers and every credential of ours stay
    behind."""
    port = target.port
    host = mask_host.replace("${PORT}", str(port)).encode() if mask_host else head.host
    lines = [b"%b %b HTTP/1.1\r\nHost: %b" % (head.method, target.path, host), *head.plain]
    for kind, value, line in head.special:
        if kind in _PASSED:
            lines.append(line)
        elif kind is ACCESS_TOKEN:
            if port in access_token_ports:
                lines.append(line)
        elif kind is AUTHORIZATION:
            if not _is_ours(value, is_credential):
                lines.append(line)
        elif kind is TE and b"trailers" in value.lower():
            lines.append(b"TE: trailers")
    if head.chunked:
        lines.append(b"Transfer-Encoding: chunked")
    elif head.length is not None:
        lines.append(b"Content-Length: %d" % head.length)
    if upgrade:
        lines.append(b"Connection: Upgrade\r\nUpgrade: %b" % (head.upgrade or b""))
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def client_head(head: ResponseHead, *, chunked: bool, close: bool, bodiless: bool) -> bytes:
    """The response head a client gets. ``bodiless``: an answer to HEAD, whose framing headers only
    inform."""
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason), *head.plain]
    if head.status == 101:
        lines.append(b"Connection: Upgrade\r\nUpgrade: %b" % (head.upgrade or b""))
    elif head.status >= 200 and head.status not in _BODILESS:
        if chunked or (bodiless and head.chunked):
            lines.append(b"Transfer-Encoding: chunked")
        elif head.length is not None:
            lines.append(b"Content-Length: %d" % head.length)
    elif head.status == 304 and head.length is not None:
        lines.append(b"Content-Length: %d" % head.length)
    if close and head.status >= 200:
        lines.append(b"Connection: close")
    lines.append(b"\r\n")
    return b"\r\n".join(lines)


def has_no_body(method: bytes, status: int) -> bool:
    return method == b"HEAD" or status in _BODILESS


def _is_ours(value: bytes, is_credential: IsCredential) -> bool:
    scheme, _, token = value.partition(b" ")
    return scheme.lower() == b"bearer" and is_credential(token.strip().decode("latin-1"))
