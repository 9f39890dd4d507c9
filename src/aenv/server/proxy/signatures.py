"""Signed ``/files`` URLs that name no sandbox: the signature is tried on every live one, under a
budget.

A probe costs one sha256 per live sandbox, in the event loop. So hashes per second are bounded for
all clients together, failures per minute for each address, and what was found is remembered (range
requests come in hundreds).
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import parse_qs

from aenv.control.routes import RouteTable
from aenv.models.errors import QuotaExceededError, UnauthorizedError
from aenv.models.sandboxes import AGENT_PORT
from aenv.server.proxy.heads import RequestHead
from aenv.server.proxy.routing import Target
from aenv.server.proxy.settings import ProxySettings

_SIGNATURE = re.compile(r"v1_[A-Za-z0-9+/]{43}")
_OPERATIONS = {b"GET": "read", b"HEAD": "read", b"POST": "write"}
_REMEMBERED = 1024


def is_signed(head: RequestHead) -> bool:
    return head.target.startswith(b"/files?") and b"signature=" in head.target


@dataclass(slots=True)
class _Bucket:
    level: float
    updated: float

    def refill(self, now: float, rate: float, size: float) -> None:
        self.level = min(size, self.level + (now - self.updated) * rate)
        self.updated = now


class SignatureProbe:
    """Finds the sandbox of a signed URL. ``clock`` gives monotonic seconds."""

    def __init__(
        self, table: RouteTable, settings: ProxySettings, clock: Callable[[], float]
    ) -> None:
        self._table = table
        self._clock = clock
        self._hashes = float(settings.signature_hashes_per_second)
        self._failures = float(settings.signature_failures_per_minute)
        self._budget = _Bucket(self._hashes, clock())
        self._peers: OrderedDict[str, _Bucket] = OrderedDict()
        self._found: OrderedDict[tuple[str | None, ...], tuple[str, str]] = OrderedDict()

    def find(self, head: RequestHead, peer: str) -> Target:
        """Raises UnauthorizedError (no sandbox made this signature) and QuotaExceededError (budget
        spent)."""
        query = parse_qs(
            head.target.partition(b"?")[2].decode("utf-8", "replace"), keep_blank_values=True
        )
        signature = _only(query, "signature") or ""
        operation = _OPERATIONS.get(head.method)
        if operation is None or _SIGNATURE.fullmatch(signature) is None:
            raise UnauthorizedError("invalid signature")
        key = (
            operation,
            _only(query, "path") or "",
            _only(query, "username") or "",
            signature,
            _only(query, "signature_expiration"),
        )
        sandbox_id = self._remembered(key) or self._probe(key, peer)
        return Target(sandbox_id, AGENT_PORT, head.target)

    def _remembered(self, key: tuple[str | None, ...]) -> str | None:
        sandbox_id, token = self._found.get(key, ("", ""))
        route = self._table.get(sandbox_id) if sandbox_id else None
        if route is None or route.access_token != token:
            return None
        self._found.move_to_end(key)
        return sandbox_id

    def _probe(self, key: tuple[str, str, str, str, str | None], peer: str) -> str:
        now = self._clock()
        allowance = self._peers.setdefault(peer, _Bucket(self._failures, now))
        self._peers.move_to_end(peer)
        if len(self._peers) > _REMEMBERED:
            self._peers.popitem(last=False)
        allowance.refill(now, self._failures / 60, self._failures)
        self._budget.refill(now, self._hashes, self._hashes)
        if allowance.level < 1 or self._budget.level <= 0:
            raise QuotaExceededError("Too many signed URLs without a sandbox id", retry_after=1)
        self._budget.level -= len(self._table)
        operation, path, user, signature, expiration = key
        route = self._table.find_by_signature(
            path=path, operation=operation, user=user, signature=signature, expiration=expiration
        )
        if route is None:
            allowance.level -= 1
            raise UnauthorizedError("invalid signature")
        self._found[key] = (route.sandbox_id, route.access_token)
        if len(self._found) > _REMEMBERED:
            self._found.popitem(last=False)
        return route.sandbox_id


def _only(query: dict[str, list[str]], name: str) -> str | None:
    values = query.get(name)
    return values[0] if values else None
