"""What the routes accept (contract e2b §1.2), and how it becomes what control understands."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from typing import Annotated, Any

from fastapi import Header
from pydantic import Field

from aenv.control.forks import MAX_FORKS, ForkRequest
from aenv.control.networks import NetworkRequest, policy
from aenv.control.requests import CreateRequest
from aenv.control.resumes import Call
from aenv.models.errors import InvalidRequestError
from aenv.server.volume_bodies import VolumeMountBody
from aenv.server.wire import Body, StrictBody

V1_TIMEOUT = 15
V2_TIMEOUT = 300
REFRESH = 15

Seconds = Annotated[int, Field(ge=0, le=365 * 24 * 3600)]
IdempotencyKey = Annotated[
    str | None, Header(alias="Idempotency-Key", pattern=r"^[a-z0-9-]{1,255}$")
]


class NetworkUpdate(StrictBody):
    """Replaces the egress rules: what is left out is cleared."""

    allow_out: list[str] | None = None
    deny_out: list[str] | None = None
    dns_servers: list[str] | None = None
    egress_proxy: dict[str, Any] | None = None
    rules: dict[str, Any] | None = None
    allow_internet_access: bool | None = Field(None, alias="allow_internet_access")

    def request(self) -> NetworkRequest:
        return NetworkRequest(
            allow_internet=self.allow_internet_access,
            allow_out=self.allow_out or (),
            deny_out=self.deny_out or (),
            dns_servers=self.dns_servers or (),
            egress_proxy=self.egress_proxy,
            rules=self.rules,
            prefix="",
        )


class Network(StrictBody):
    allow_public_traffic: bool | None = None
    allow_out: list[str] | None = None
    deny_out: list[str] | None = None
    dns_servers: list[str] | None = None
    egress_proxy: dict[str, Any] | None = None
    mask_request_host: str | None = None
    https_ports: list[int] | None = None
    rules: dict[str, Any] | None = None


class AutoResume(Body):
    enabled: bool = False


class NewSandbox(Body):
    """``cpuCount``, ``memoryMB``, ``diskSizeMB``, ``engine`` and ``secretEnvVars`` are ours; E2B's
    clients do not send them. ``secretEnvVars`` names those of ``envVars`` that forks and sandboxes
    from snapshots are not given.

    ``secure`` is read and without effect: every sandbox is secured. ``mcp`` needs nothing of the
    server: the client starts the gateway by a command.
    """

    template_id: str = Field(min_length=1, max_length=255)
    timeout: Seconds | None = None
    auto_pause: bool | None = None
    auto_pause_memory: bool | None = None
    auto_resume: AutoResume | None = None
    secure: bool | None = None
    allow_internet_access: bool | None = Field(None, alias="allow_internet_access")
    metadata: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None
    secret_env_vars: list[str] | None = None
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None
    volume_mounts: list[VolumeMountBody] | None = None
    network: Network | None = None
    cpu_count: Annotated[float, Field(gt=0, le=1024, strict=False)] | None = None
    memory_mb: Annotated[int, Field(ge=64, le=16 * 2**20)] | None = None
    disk_size_mb: Annotated[int, Field(ge=64, le=2**30)] | None = None
    engine: Annotated[str, Field(min_length=1, max_length=32)] | None = None

    def request(self, default_timeout: int, idempotency_key: str | None) -> CreateRequest:
        """InvalidRequestError or NotBuiltYetError for what cannot be served."""
        return CreateRequest(
            template=self.template_id,
            timeout=default_timeout if self.timeout is None else self.timeout,
            fingerprint=fingerprint(self, default_timeout),
            idempotency_key=idempotency_key,
            metadata=self.metadata or {},
            env_vars=self.env_vars or {},
            secret_env=tuple(dict.fromkeys(self.secret_env_vars or ())),
            network=policy(self._network()),
            cpu=self.cpu_count,
            memory_mb=self.memory_mb,
            disk_mb=self.disk_size_mb,
            engine=self.engine,
            auto_pause=bool(self.auto_pause),
            auto_pause_memory=self.auto_pause_memory is not False,
            auto_resume=bool(self.auto_resume and self.auto_resume.enabled),
            volume_mounts=tuple(one.request() for one in self.volume_mounts or ()),
            iam=self.iam,
        )

    def _network(self) -> NetworkRequest:
        network = self.network or Network()
        return NetworkRequest(
            allow_internet=self.allow_internet_access,
            allow_out=network.allow_out or (),
            deny_out=network.deny_out or (),
            dns_servers=network.dns_servers or (),
            allow_public_traffic=network.allow_public_traffic is not False,
            mask_request_host=network.mask_request_host,
            rules=network.rules,
            egress_proxy=network.egress_proxy,
            https_ports=network.https_ports or (),
        )


def fingerprint(body: Body, default_timeout: int) -> str:
    """What tells one body from another under the same idempotency key."""
    content = [default_timeout, body.model_dump(mode="json", exclude_unset=True)]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Connect(Body):
    """``memory`` False: boot from the disk, whatever the pause has kept."""

    timeout: Seconds
    memory: bool | None = None

    def call(self) -> Call:
        return Call(self.timeout, reboot=self.memory is False)


class ConnectV2(Connect):
    timeout: Seconds = V2_TIMEOUT


class Resume(Connect):
    timeout: Seconds = V1_TIMEOUT
    auto_pause: bool | None = None

    def call(self) -> Call:
        return replace(super().call(), auto_pause=self.auto_pause)


class Pause(Body):
    """``memory`` False: keep the disk alone."""

    memory: bool | None = None
    require_healthy_guest: bool | None = None


class NewSnapshot(Body):
    name: Annotated[str, Field(max_length=300)] | None = None
    memory: bool | None = None


class Fork(Body):
    """``secrets`` is ours: hand on the variables that were marked secret, too."""

    timeout: Seconds = V2_TIMEOUT
    count: Annotated[int, Field(ge=1, le=MAX_FORKS)] = 1
    secrets: bool = False

    def request(self) -> ForkRequest:
        return ForkRequest(self.count, self.timeout, self.secrets)


class Timeout(Body):
    timeout: Seconds


class Refresh(Body):
    duration: Annotated[int, Field(ge=0, le=3600)] = REFRESH


class Shutdown(Body):
    """``kill``: end the sandboxes too; else they go on running."""

    kill: bool = False


def listed(text: str, name: str) -> list[str]:
    """A comma list; InvalidRequestError for an empty member."""
    parts = [part.strip() for part in text.split(",")]
    if not all(parts):
        raise InvalidRequestError(f"{name}: an empty member in the list")
    return parts
