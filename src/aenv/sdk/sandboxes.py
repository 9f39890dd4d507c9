"""A sandbox as its caller holds it. ``_sync.py`` is derived from this module."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import urlsplit

from aenv.models.sandboxes import NetworkPolicy, SandboxMetrics
from aenv.sdk import faults, logs, servers, wire
from aenv.sdk.client import Agent, Client
from aenv.sdk.creates import Create
from aenv.sdk.files import AsyncFiles
from aenv.sdk.lifecycles import Lifecycle
from aenv.sdk.results import LogLine, SandboxInfo, metrics_from_wire
from aenv.sdk.running import Commands


class AsyncSandbox(Commands, Lifecycle):
    """An isolated machine. Made by :meth:`create`, found again by :meth:`attach` or
    :meth:`connect`.

    As a context manager it is killed at the end. ``url``, ``api_key`` and ``profile`` name the
    server; without them ``AENV_SYSTEM_URL`` and the default profile do, else the local server is
    used and started when none runs.
    """

    def __init__(self, *_: object, **__: object) -> None:
        """Nothing: making one takes an ``await``."""
        raise TypeError(
            "an AsyncSandbox is made by `await AsyncSandbox.create(…)`, and an existing one found "
            "by `await AsyncSandbox.attach(id)`; `Sandbox(…)` needs no await"
        )

    @classmethod
    def _of(
        cls, client: Client, body: Mapping[str, Any], secrets: Mapping[str, str] | None = None
    ) -> Self:
        found = cls.__new__(cls)
        found._client = client
        found._secrets = dict(secrets or {})
        found._become(body)
        return found

    def _become(self, body: Mapping[str, Any]) -> None:
        self._body = dict(body)
        self._id = str(body["sandboxID"])
        Commands.__init__(self, Agent(self._client, self._id, body.get("envdAccessToken")))
        self._files = AsyncFiles(self._agent)

    @classmethod
    async def create(
        cls,
        template: str | None = None,
        *,
        timeout: int = 300,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        auto_pause: bool = False,
        auto_pause_memory: bool = True,
        auto_resume: bool = False,
        volumes: Mapping[str, str] | None = None,
        cpu: float | None = None,
        memory_mb: int | None = None,
        disk_mb: int | None = None,
        network: NetworkPolicy | None = None,
        engine: str | None = None,
        wait: float = 1200,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> AsyncSandbox:
        """Start a sandbox that lives ``timeout`` seconds unless extended.

        Without ``template`` it is ``base``, or ``host`` (with a warning) while ``base`` is not
        built. A template that is being built is waited for, up to ``wait`` seconds. ``engine``
        names another engine than the server's; ``"process"`` isolates nothing. ``template`` may be
        a snapshot's id.

        ``secrets`` are variables that forks and sandboxes from its snapshots are not given. With
        ``auto_pause`` it is paused at the end of its time instead of killed, with ``auto_resume``
        any traffic to it then resumes it. ``volumes``: path in the sandbox → name of a volume.
        """
        request = Create(
            template=template,
            timeout=timeout,
            env=env or {},
            secrets=secrets or {},
            auto_pause=auto_pause,
            auto_pause_memory=auto_pause_memory,
            auto_resume=auto_resume,
            volumes=volumes or {},
            metadata=metadata or {},
            cpu=cpu,
            memory_mb=memory_mb,
            disk_mb=disk_mb,
            network=network,
            engine=engine,
        )
        client = await servers.connect(url, api_key, profile, engine=engine)
        try:
            return cls._of(client, await request.send(client, wait=wait), secrets)
        except BaseException:
            await client.aclose()
            raise

    @classmethod
    async def attach(
        cls,
        sandbox_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> AsyncSandbox:
        """A handle on a sandbox that exists; its life time stays as it is."""
        client = await servers.connect(url, api_key, profile)
        return cls._of(client, await servers.fetch(client, "GET", f"/sandboxes/{sandbox_id}"))

    @classmethod
    async def connect(
        cls,
        sandbox_id: str,
        *,
        timeout: int = 300,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> AsyncSandbox:
        """Like :meth:`attach`, and it lives at least ``timeout`` seconds from now; a paused one is
        resumed.
        """
        client = await servers.connect(url, api_key, profile)
        path = f"/v2/sandboxes/{sandbox_id}/connect"
        return cls._of(client, await servers.fetch(client, "POST", path, {"timeout": timeout}))

    @classmethod
    async def list(
        cls,
        *,
        metadata: Mapping[str, str] | None = None,
        state: Literal["running", "paused"] | None = None,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> builtins.list[SandboxInfo]:
        """All sandboxes of the key, newest first; only those with all of ``metadata``, or in
        ``state``, if given.
        """
        client = await servers.connect(url, api_key, profile)
        try:
            return await servers.list_sandboxes(client, metadata=metadata, state=state)
        finally:
            await client.aclose()

    @property
    def id(self) -> str:
        return self._id

    @property
    def template(self) -> str:
        """The template's name, or its id where it has no name."""
        return str(self._body.get("alias") or self._body["templateID"])

    @property
    def traffic_headers(self) -> dict[str, str]:
        """What the server's proxy wants to see to let requests through to any port of it."""
        token = self._body.get("trafficAccessToken")
        headers = {"e2b-sandbox-id": self._id}
        return {**headers, "e2b-traffic-access-token": str(token)} if token else headers

    @property
    def server_url(self) -> str:
        return self._client.endpoint.url

    @property
    def files(self) -> AsyncFiles:
        return self._files

    def host(self, port: int) -> str:
        """The host name under which the server forwards to a port of the sandbox."""
        domain = self._body.get("domain") or "localhost"
        return f"{port}-{self._id}.{domain}"

    def url(self, port: int) -> str:
        """Where a browser or HTTP client reaches a port of the sandbox."""
        server = urlsplit(self._client.endpoint.url)
        port_of_host = urlsplit(f"//{self.host(port)}").port
        plain = server.scheme == "http" and port_of_host in (None, server.port)
        return f"{'http' if plain else 'https'}://{self.host(port)}"

    async def info(self) -> SandboxInfo:
        """SandboxNotFoundError once it is gone."""
        return SandboxInfo.from_wire((await self._control("GET", "")).json())

    async def metrics(self) -> builtins.list[SandboxMetrics]:
        """Samples in time order; the newest is the last."""
        return [
            metrics_from_wire(entry) for entry in (await self._control("GET", "/metrics")).json()
        ]

    async def logs(self, *, limit: int = 1000, search: str | None = None) -> builtins.list[LogLine]:
        """The newest ``limit`` lines of the sandbox's processes and agent, oldest first."""
        return await logs.newest(self._client, self._id, limit=limit, search=search)

    async def follow_logs(
        self, *, limit: int = 1000, search: str | None = None
    ) -> AsyncGenerator[LogLine, None]:
        """The newest ``limit`` lines, then new ones as they come, until the sandbox ends."""
        lines = logs.follow(self._client, self._id, limit=limit, search=search)
        async with aclosing(lines):
            async for line in lines:
                yield line

    async def set_timeout(self, seconds: int) -> None:
        """Let it end so many seconds from now, sooner or later than before."""
        await self._control("POST", "/timeout", {"timeout": seconds})

    async def extend(self, seconds: int) -> None:
        """Let it live at least so many seconds from now."""
        await self._control("POST", "/refreshes", {"duration": seconds})

    async def set_network(self, policy: NetworkPolicy) -> None:
        """Replace the egress rules; they hold for new connections at once."""
        await self._control("PUT", "/network", wire.network(policy))

    async def fork(
        self, count: int = 1, *, timeout: int = 300, secrets: bool = False
    ) -> builtins.list[AsyncSandbox]:
        """``count`` new sandboxes that go on from this moment, memory included; this one runs on.

        All of them or none: when one fails the others are killed and its error is raised. With
        ``secrets`` they are given the secret variables, too.
        """
        body = {"count": count, "timeout": timeout, "secrets": secrets}
        results = (await self._control("POST", "/fork", body)).json()
        made = [result["sandbox"] for result in results if "sandbox" in result]
        failed = [result["error"] for result in results if "sandbox" not in result]
        if failed:
            await asyncio.gather(*(servers.kill(self._client, one["sandboxID"]) for one in made))
            raise faults.from_body(failed[0])
        kept = self._secrets if secrets else {}
        return [AsyncSandbox._of(Client(self._client.endpoint), one, kept) for one in made]

    async def kill(self) -> bool:
        """End it and free all it holds; False when it was gone already."""
        try:
            return await servers.kill(self._client, self._id)
        finally:
            await self.close()

    async def close(self) -> None:
        """Let go of connections; the sandbox lives on."""
        await self._client.aclose()

    async def __aenter__(self) -> AsyncSandbox:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.kill()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._id!r}, template={self.template!r})"
