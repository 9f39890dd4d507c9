"""Who may wake a paused sandbox: whoever could reach it if it ran. The rules are those of the proxy
(guest ports) and of the agent (its own), applied to the catalog's row before anything is resumed.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass

from aenv.control import networks
from aenv.control.clocks import SECOND
from aenv.control.routes import sign
from aenv.models.sandboxes import AGENT_PORT
from aenv.store.records import SandboxRecord


@dataclass(frozen=True, slots=True)
class Signed:
    """What a signed ``/files`` URL claims (contract e2b §2.4), as it is in the query."""

    path: str
    operation: str
    user: str
    signature: str
    expiration: str

    def is_valid(self, token: str, now: int) -> bool:
        """``now`` in nanoseconds."""
        suffix = f":{self.expiration}" if self.expiration else ""
        made = sign(f"{self.path}:{self.operation}:{self.user}:{token}{suffix}")
        if not _same(made, self.signature.encode()):
            return False
        if not self.expiration:
            return True
        return self.expiration.isdecimal() and int(self.expiration) >= now // SECOND


@dataclass(frozen=True, slots=True)
class Visitor:
    """A request of the data plane to ``port`` of the guest, with the tokens it has. ``probe``: it
    asks whether the sandbox runs. That wakes nobody: clients whose streams a pause has cut ask it
    at once, and no sandbox would stay paused.
    """

    port: int
    traffic_token: bytes | None = None
    access_token: bytes | None = None
    signed: Signed | None = None
    probe: bool = False


def may_enter(record: SandboxRecord, visitor: Visitor, now: int) -> bool:
    """``now``: the wall clock in nanoseconds."""
    if visitor.port != AGENT_PORT:
        public = networks.from_json(record.network).allow_public_traffic
        return public or _same(record.traffic_token, visitor.traffic_token)
    if visitor.probe:
        return True
    if visitor.access_token:
        return _same(record.access_token, visitor.access_token)
    return visitor.signed is not None and visitor.signed.is_valid(record.access_token, now)


def _same(secret: str | None, given: bytes | None) -> bool:
    return bool(secret and given and hmac.compare_digest(secret.encode(), given))
