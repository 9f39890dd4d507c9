"""Creating a sandbox: which template, and patience while it is being built."""

from __future__ import annotations

import asyncio
import time
import uuid
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from aenv.models.errors import (
    CapacityError,
    ServerUnreachableError,
    TemplateNotReadyError,
)
from aenv.models.sandboxes import NetworkPolicy
from aenv.sdk import wire
from aenv.sdk.client import Client
from aenv.sdk.results import TemplateSummary

BASE, HOST = "base", "host"


@dataclass(frozen=True, slots=True)
class Create:
    """What ``POST /v2/sandboxes`` is asked for; None leaves a choice to the server."""

    template: str | None = None
    timeout: int = 300
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    metadata: Mapping[str, str] = field(default_factory=dict)
    cpu: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    network: NetworkPolicy | None = None
    engine: str | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    auto_pause: bool = False
    auto_pause_memory: bool = True
    auto_resume: bool = False
    volumes: Mapping[str, str] = field(default_factory=dict)

    async def send(self, client: Client, *, wait: float) -> dict[str, Any]:
        """Ask until it is there. A template that is being built is waited for, up to ``wait``
        seconds; then TemplateNotReadyError with the progress.

        One idempotency key covers all tries, so that a lost answer makes no second sandbox.
        """
        body = self._body(self.template or await default_template(client))
        headers = {"idempotency-key": str(uuid.uuid4())}
        deadline = time.monotonic() + wait
        lost = 0
        while True:
            try:
                answer = await client.call("POST", "/v2/sandboxes", json=body, headers=headers)
            except (TemplateNotReadyError, CapacityError) as error:
                pause = error.retry_after if error.retry_after is not None else 1.0
                building = isinstance(error, TemplateNotReadyError)
                if not building or time.monotonic() + pause > deadline:
                    raise
                headers = {"idempotency-key": str(uuid.uuid4())}
                await asyncio.sleep(pause)
            except ServerUnreachableError:
                lost += 1
                if lost > 2:
                    raise
                await asyncio.sleep(0.2 * lost)
            else:
                return dict(answer.json())

    def _body(self, template: str) -> dict[str, Any]:
        body: dict[str, Any] = {
            "templateID": template,
            "timeout": self.timeout,
            "envVars": {**self.env, **self.secrets},
            "metadata": dict(self.metadata),
            "cpuCount": self.cpu,
            "memoryMB": self.memory_mb,
            "diskSizeMB": self.disk_mb,
            "engine": self.engine,
        }
        if self.volumes:
            mounts = [{"name": name, "path": path} for path, name in self.volumes.items()]
            body["volumeMounts"] = mounts
        if self.secrets:
            body["secretEnvVars"] = list(self.secrets)
        if self.auto_pause:
            body |= {"autoPause": True, "autoPauseMemory": self.auto_pause_memory}
        if self.auto_resume:
            body["autoResume"] = {"enabled": True}
        if self.network is not None:
            body["allow_internet_access"] = self.network.allow_internet
            body["network"] = wire.network(self.network, create=True)
        return {key: value for key, value in body.items() if value is not None}


async def default_template(client: Client) -> str:
    """``base``, or ``host`` while ``base`` is not built."""
    ready: set[str] = set()
    for template in await templates(client):
        if template.ready:
            ready.update(template.names)
    if BASE in ready or HOST not in ready:
        return BASE
    warnings.warn(
        "the template `base` is not built yet, so this sandbox uses `host`, which shows this "
        "machine's programs and is not reproducible; build it once with: aenv template build base",
        stacklevel=2,
    )
    return HOST


async def templates(client: Client) -> list[TemplateSummary]:
    answer = await client.call("GET", "/templates")
    return [TemplateSummary.from_wire(entry) for entry in answer.json()]


async def delete_template(client: Client, name: str) -> None:
    """Free a template, and never a snapshot of that name. NotFoundError."""
    found = (await client.call("GET", f"/templates/{quote(name, safe='/:')}")).json()
    await client.call("DELETE", f"/templates/{found['templateID']}")
