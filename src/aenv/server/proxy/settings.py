"""The proxy's limits and its counters."""

from __future__ import annotations

from dataclasses import dataclass

from aenv.models.sandboxes import AGENT_PORT, INTERPRETER_PORT


@dataclass(frozen=True, slots=True)
class ProxySettings:
    """Seconds and bytes. ``keep_alive_timeout`` outlasts the 300 s for which the E2B SDKs keep idle
    connections.

    ``access_token_ports``: the guest ports that get to see ``X-Access-Token``; what listens there
    belongs to the sandbox's owner and asks for it.
    """

    max_connections: int = 8192
    max_head_bytes: int = 65536
    max_headers: int = 200
    head_timeout: float = 20
    keep_alive_timeout: float = 330
    drain_timeout: float = 4
    body_timeout: float = 60
    linger_timeout: float = 10
    half_close_timeout: float = 5
    buffer_bytes: int = 65536

    max_requests_per_sandbox: int = 1024
    connect_timeout: float = 5
    resolve_timeout: float = 60
    upstream_idle_timeout: float = 30
    upstream_idle_per_port: int = 64

    max_parked_per_sandbox: int = 256
    park_timeout: float = 30

    signature_hashes_per_second: int = 50_000
    signature_failures_per_minute: int = 60

    access_token_ports: frozenset[int] = frozenset({AGENT_PORT, INTERPRETER_PORT})


@dataclass(slots=True)
class ProxyStats:
    """Counters since start, but for ``connections_open`` and ``requests_active``, which are
    gauges."""

    connections: int = 0
    connections_open: int = 0
    evicted: int = 0
    control_requests: int = 0
    data_requests: int = 0
    requests_active: int = 0
    upgrades: int = 0
    bytes_to_guests: int = 0
    bytes_to_clients: int = 0
    upstream_connects: int = 0
    upstream_reuses: int = 0
    upstream_retries: int = 0
    upstream_errors: int = 0
    refused_malformed: int = 0
    refused_not_found: int = 0
    refused_port_closed: int = 0
    refused_forbidden: int = 0
    refused_limit: int = 0
    refused_timeout: int = 0
    parked: int = 0
    aborted: int = 0
    client_disconnects: int = 0
