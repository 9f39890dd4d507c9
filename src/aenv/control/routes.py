"""The route table: where the data plane finds a sandbox. Control publishes, the proxy looks up; no
database, no lock.

Single-threaded: everything runs in the server's event loop.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from aenv.models.sandboxes import AGENT_PORT


@dataclass(frozen=True, slots=True)
class Route:
    """How to reach one running sandbox."""

    sandbox_id: str
    agent: tuple[str, int]
    guest_host: str
    access_token: str = field(repr=False)
    traffic_token: str | None = field(default=None, repr=False)
    allow_public_traffic: bool = True
    mask_request_host: str | None = None

    def address(self, port: int) -> tuple[str, int]:
        return self.agent if port == AGENT_PORT else (self.guest_host, port)


WithdrawListener = Callable[[str], None]


class RouteTable:
    """sandbox id → Route, with listeners that are told when a route goes (so that connections are
    aborted).
    """

    def __init__(self) -> None:
        self._routes: dict[str, Route] = {}
        self._listeners: list[WithdrawListener] = []

    def get(self, sandbox_id: str) -> Route | None:
        return self._routes.get(sandbox_id)

    def __iter__(self) -> Iterator[Route]:
        return iter(list(self._routes.values()))

    def __len__(self) -> int:
        return len(self._routes)

    def publish(self, route: Route) -> None:
        self._routes[route.sandbox_id] = route

    def withdraw(self, sandbox_id: str) -> None:
        if self._routes.pop(sandbox_id, None) is not None:
            for listener in self._listeners:
                listener(sandbox_id)

    def on_withdraw(self, listener: WithdrawListener) -> None:
        self._listeners.append(listener)

    def find_by_signature(
        self, *, path: str, operation: str, user: str, signature: str, expiration: str | None
    ) -> Route | None:
        """The sandbox whose access token made a ``/files`` signature (contract e2b §2.4 and §3,
        trap 1).
        """
        suffix = f":{expiration}" if expiration else ""
        for route in self._routes.values():
            raw = f"{path}:{operation}:{user}:{route.access_token}{suffix}"
            if hmac.compare_digest(sign(raw), signature):
                return route
        return None


def sign(raw: str) -> str:
    """``v1_`` + unpadded standard base64 of sha256, as both E2B SDKs compute it."""
    return "v1_" + b64encode(hashlib.sha256(raw.encode()).digest()).rstrip(b"=").decode()
