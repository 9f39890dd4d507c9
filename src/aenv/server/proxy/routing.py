"""Which sandbox and port a request is for, if any (contract e2b §3 and §8, agentenv's ``/proxy``).

The order is: the Host form ``{port}-{id}.anything`` (a page served from it must not reach other
sandboxes by sending headers, and a guest may itself serve sandboxes), then the header pairs, then
signed ``/files`` URLs. The headers are not removed: E2B's own proxy lets them pass.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from urllib.parse import unquote_to_bytes

from aenv.models.ids import SANDBOX_ID_LENGTH
from aenv.models.sandboxes import AGENT_PORT
from aenv.server.proxy.heads import MalformedHeadError, RequestHead
from aenv.server.proxy.names import AGENTENV_ID, AGENTENV_PORT, E2B_ID, E2B_PORT

_HOST_FORM = re.compile(rb"([0-9]{1,5})-([a-z0-9]{%d})\." % SANDBOX_ID_LENGTH, re.IGNORECASE)
_PORT = re.compile(rb"[0-9]{1,5}")
_HOST_ONLY = frozenset({b"init", b"freeze", b"thaw", b"aenv"})
_MAX_DECODINGS = 8
_MAX_CACHED = 256


class Style(Enum):
    """How the client addressed the sandbox; it decides how a missing sandbox is answered."""

    E2B = "e2b"
    AGENTENV = "agentenv"


@dataclass(slots=True)
class Target:
    """``path`` is what the guest gets as its target. (Frozen would cost 1 µs per request.)"""

    sandbox_id: str
    port: int
    path: bytes
    style: Style = Style.E2B


def find_target(head: RequestHead) -> Target | None:
    """The data-plane target of a request, None for a control-plane request. Raises
    MalformedHeadError."""
    host = _HOST_FORM.match(head.host)
    if host is not None:
        return Target(host[2].decode().lower(), _port(host[1]), head.target)
    unique = head.unique
    e2b, agentenv = unique.get(E2B_ID), unique.get(AGENTENV_ID)
    if e2b is None and agentenv is None:
        return None
    if e2b is not None and agentenv is not None and e2b != agentenv:
        raise MalformedHeadError(
            "E2b-Sandbox-Id and x-agentenv-sandbox-id name different sandboxes"
        )
    path = without_prefix(head.target)
    if e2b is not None:
        return Target(_id(e2b), _port(unique.get(E2B_PORT)), path)
    if AGENTENV_PORT not in unique:
        raise MalformedHeadError("x-agentenv-sandbox-id needs x-agentenv-target-port beside it")
    return Target(_id(agentenv or b""), _port(unique[AGENTENV_PORT]), path, Style.AGENTENV)


def is_proxy_path(target: bytes) -> bool:
    """Whether a target is AgentENV's ``/proxy[/path]``."""
    return target[:6] == b"/proxy" and target[6:7] in (b"", b"/", b"?")


def without_prefix(target: bytes) -> bytes:
    if not is_proxy_path(target):
        return target
    rest = target[6:]
    return rest if rest.startswith(b"/") else b"/" + rest


def is_host_only(target: bytes) -> bool:
    """Whether a target on the agent is one that only the host may call, however it is spelt."""
    path = target.partition(b"?")[0]
    return _is_host_only(path) if len(path) <= _MAX_CACHED else _normalised(path) in _HOST_ONLY


@lru_cache(maxsize=1024)
def _is_host_only(path: bytes) -> bool:
    return _normalised(path) in _HOST_ONLY


def _normalised(path: bytes) -> bytes:
    """The first segment as the most lenient server might read it.

    It errs on the side of refusing: percent-encoding is undone repeatedly, backslashes and empty or
    dot segments are resolved, case is ignored.
    """
    for _ in range(_MAX_DECODINGS):
        if b"%" not in path:
            break
        path = unquote_to_bytes(path)
    segments: list[bytes] = []
    for segment in re.split(rb"[/\\]+", path.partition(b"?")[0].lower()):
        if segment == b"..":
            del segments[-1:]
        elif segment not in (b"", b"."):
            segments.append(segment.partition(b";")[0].strip(b"\0\t\r\n "))
    return segments[0] if segments else b""


def _id(value: bytes) -> str:
    if not value:
        raise MalformedHeadError("The sandbox id is empty")
    return value.decode("latin-1")


@lru_cache(maxsize=1024)
def _port(value: bytes | None) -> int:
    if value is None:
        return AGENT_PORT
    if _PORT.fullmatch(value) is None or not 0 < int(value) < 65536:
        raise MalformedHeadError("The sandbox port is not a number from 1 to 65535")
    return int(value)
