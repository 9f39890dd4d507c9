"""What the catalog's rows are outside of it: frozen, and silent about secrets when printed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from aenv.models.sandboxes import EndKind, Resources, SandboxState
from aenv.models.snapshots import PauseMode, RestoreMode, SnapshotKind
from aenv.models.volumes import VolumeMount


@dataclass(frozen=True, slots=True)
class SandboxRecord:
    """One sandbox, living or ended. Times are nanoseconds since the epoch; ``labels`` is the user's
    metadata.

    ``network`` is the caller's request in wire form (it is given back by the API); the policy is
    derived from it. ``env_vars`` are kept while it lives: a boot from its disk needs them again;
    those named in ``secret_env`` are not handed to forks.

    ``snapshot_id``: the image it is paused in; while ``pausing`` the one being made. ``restored``
    and ``note``: how it last came back, and why not as asked. ``parent_*``: what it was forked or
    started from. ``timeout``: seconds, as last asked for.
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
    env_vars: dict[str, str] = field(default_factory=dict, repr=False)
    secret_env: tuple[str, ...] = ()
    timeout: int = 300
    auto_pause: bool = False
    auto_pause_memory: bool = True
    auto_resume: bool = False
    snapshot_id: str | None = None
    pause_mode: PauseMode | None = None
    unresponsive_at_pause: bool = False
    restored: RestoreMode | None = None
    note: str | None = None
    parent_sandbox: str | None = None
    parent_snapshot: str | None = None
    volumes: tuple[VolumeMount, ...] = ()

    @property
    def public_env(self) -> dict[str, str]:
        """What forks and snapshots of it are given."""
        return {key: text for key, text in self.env_vars.items() if key not in self.secret_env}


@dataclass(frozen=True, slots=True)
class SnapshotRecord:
    """A kept image. ``base``: the template below it; ``template_id``: its own, for kind NAMED;
    ``parent``: the snapshot that its sandbox was started from. Bytes as of its last look.
    ``volumes``: what a sandbox from it has.
    """

    id: str
    kind: SnapshotKind
    team: str
    sandbox_id: str
    base_id: str
    base: str
    engine: str
    resources: Resources
    has_memory: bool
    disk_bytes: int
    memory_bytes: int
    own_bytes: int
    created_at: int
    updated_at: int
    template_id: str | None = None
    name: str | None = None
    tag: str = "default"
    parent: str | None = None
    env_vars: dict[str, str] = field(default_factory=dict, repr=False)
    volumes: tuple[VolumeMount, ...] = ()

    @property
    def public_id(self) -> str:
        """E2B's ``snapshotID``."""
        named = f"{self.team}/{self.name}" if self.name else self.template_id or self.id
        return f"{named}:{self.tag}"


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
