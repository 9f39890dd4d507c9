"""The header names that mean something to the proxy, in lower case; all others pass unread."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

HOST = b"host"
LENGTH = b"content-length"
CODING = b"transfer-encoding"
CONNECTION = b"connection"
UPGRADE = b"upgrade"
EXPECT = b"expect"
TE = b"te"
AUTHORIZATION = b"authorization"
ACCESS_TOKEN = b"x-access-token"
TRAFFIC_TOKEN = b"e2b-traffic-access-token"
E2B_ID = b"e2b-sandbox-id"
E2B_PORT = b"e2b-sandbox-port"
AGENTENV_ID = b"x-agentenv-sandbox-id"
AGENTENV_PORT = b"x-agentenv-target-port"

ROUTING = frozenset({E2B_ID, E2B_PORT, AGENTENV_ID, AGENTENV_PORT})
_HOP_BY_HOP = frozenset(
    {CONNECTION, UPGRADE, TE, b"keep-alive", b"proxy-connection", b"proxy-authorization"}
    | {b"proxy-authenticate", b"http2-settings"}
)
_SECRETS = frozenset({b"x-api-key", b"x-admin-token", b"x-aenv-host-secret"})
_FRAMING = frozenset({LENGTH, CODING})
UNIQUE = ROUTING | _FRAMING | {HOST, TRAFFIC_TOKEN}
_SPECIAL_REQUEST = UNIQUE | _HOP_BY_HOP | _SECRETS | {AUTHORIZATION, ACCESS_TOKEN, EXPECT}
_SPECIAL_RESPONSE = _FRAMING | _HOP_BY_HOP


def _classifier(names: frozenset[bytes]) -> Callable[[bytes], bytes | None]:
    interned = {name: name for name in names}

    @lru_cache(maxsize=4096)
    def classify(name: bytes) -> bytes | None:
        return interned.get(name.lower())

    return classify


request_kind = _classifier(_SPECIAL_REQUEST)
response_kind = _classifier(_SPECIAL_RESPONSE)
