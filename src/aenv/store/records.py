"""What the catalog's rows are outside of it: frozen, and silent about secrets when printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aenv.models.sandboxes import EndKind, Resources, SandboxState


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """One sandbox, living or ended. Times are nanoseconds since the epoch; ``labels`` is the user's
    metadata.

    ``network`` is the caller's request in wire form (it is given back by the API); the policy is
    derived from it.
    """

    id: str
    version: int
    state: SandboxState
    team: str
    key_id: str
    template_id: str
    template: str
    engine: str
    resources: Resources
    access_token: str = field(repr=False)
    host_secret: str = field(repr=False)
    created_at: int
    started_at: int
    end_at: int
    traffic_token: str | None = field(default=None, repr=False)
    labels: dict[str, str] = field(default_factory=dict, repr=False)
    network: dict[str, Any] = field(default_factory=dict, repr=False)
    ended_at: int | None = None
    end_kind: EndKind | None = None
    end_reason: str | None = None
    exit_code: int | None = None


@dataclass(frozen=True, slots=True)
class ApiKeyRecord:
    """``mask`` is what may be shown of the key; ``origin`` is local, preset or user."""

    id: str
    hash: str = field(repr=False)
    mask: str
    name: str
    origin: str
    team: str
    admin: bool
    created_at: int
    revoked_at: int | None = None


@dataclass(frozen=True, slots=True)
class Usage:
    """What an API key or a state holds at the moment."""

    sandboxes: int = 0
    cpu: float = 0.0
    memory_mb: int = 0
    disk_mb: int = 0


@dataclass(frozen=True, slots=True)
class TemplateUse:
    count: int = 0
    last_used_at: int | None = None


@dataclass(frozen=True, slots=True)
class IdempotencyRecord:
    fingerprint: str
    sandbox_id: str
    created_at: int
