"""The heads we write: to guests without our credentials, to clients, both with our framing."""

from __future__ import annotations

import re
from collections.abc import Callable, Container

from aenv.server.proxy.heads import (
    RequestHead,
    ResponseHead,
)
from aenv.server.proxy.names import (
    ACCESS_TOKEN,
    AUTHORIZATION,
    EXPECT,
    ROUTING,
    TE,
)
from aenv.server.proxy.routing import Target

IsCredential = Callable[[str], bool]

_BODILESS = frozenset({204, 304})
_PASSED = ROUTING | {EXPECT}
_HOST = re.compile(r"[!-~]+")


def guest_head(
    head: RequestHead,
    target: Target,
    *,
    upgrade: bool,
    mask_host: str | None,
    access_token_ports: Container[int],
    is_credential: IsCredential,
) -> bytes:
    """The request head a guest gets: no hop-by-hop header, and none of our credentials."""
    authorized = not head.bearer or not _shows_credential(head, is_credential)
    passed = target.port in access_token_ports
    key = (target.path, target.port, upgrade, mask_host, authorized, passed)
    found = head.written.get(key)
    if found is not None:
        return found
    host = head.host
    if mask_host and _HOST.fullmatch(mask_host):
        host = mask_host.replace("${PORT}", str(target.port)).encode()
    names = set(_PASSED)
    if authorized:
        names.add(AUTHORIZATION)
    if passed:
        names.add(ACCESS_TOKEN)
    lines = [b"%b %b HTTP/1.1\r\nHost: %b" % (head.method, target.path, host), *head.plain]
    lines += [line for name, _, line in head.special if name in names]
    lines += _request_framing(head, upgrade=upgrade)
    lines.append(b"\r\n")
    head.written[key] = written = b"\r\n".join(lines)
    return written


def _request_framing(head: RequestHead, *, upgrade: bool) -> list[bytes]:
    lines = []
    if any(name is TE and b"trailers" in value.lower() for name, value, _ in head.special):
        lines.append(b"TE: trailers")
    if head.chunked:
        lines.append(b"Transfer-Encoding: chunked")
    elif head.length is not None:
        lines.append(b"Content-Length: %d" % head.length)
    if upgrade:
        lines.append(b"Connection: Upgrade\r\nUpgrade: %b" % (head.upgrade or b""))
    return lines


def _shows_credential(head: RequestHead, is_credential: IsCredential) -> bool:
    for name, value, _ in head.special:
        if name is AUTHORIZATION:
            scheme, _, token = value.partition(b" ")
            if scheme.lower() == b"bearer" and is_credential(token.strip().decode("latin-1")):
                return True
    return False


def client_head(head: ResponseHead, *, chunked: bool, close: bool, bodiless: bool) -> bytes:
    """The response head a client gets. ``bodiless``: whose framing headers only inform."""
    key = (chunked, close, bodiless)
    found = head.written.get(key)
    if found is not None:
        return found
    lines = [b"HTTP/1.1 %d %b" % (head.status, head.reason), *head.plain]
    if head.status == 101:
        lines.append(b"Connection: Upgrade\r\nUpgrade: %b" % (head.upgrade or b""))
    elif head.status >= 200 and head.status != 204:
        if chunked or (bodiless and head.chunked and head.status != 304):
            lines.append(b"Transfer-Encoding: chunked")
        elif head.length is not None:
            lines.append(b"Content-Length: %d" % head.length)
    if close and head.status >= 200:
        lines.append(b"Connection: close")
    lines.append(b"\r\n")
    head.written[key] = written = b"\r\n".join(lines)
    return written


def has_no_body(method: bytes, status: int) -> bool:
    return method == b"HEAD" or status in _BODILESS
