"""The HTTP client of one server: control calls, and the way to a sandbox's agent through the
server's proxy.
"""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from json import loads
from typing import Any

from aenv._version import __version__
from aenv.models.errors import (
    AenvError,
    AgentUnreachableError,
    SandboxNotFoundError,
    SandboxPausedError,
    ServerUnreachableError,
)
from aenv.models.sandboxes import AGENT_PORT, SandboxState
from aenv.sdk import connect, faults
from aenv.sdk._httpx import httpx
from aenv.sdk.codecs import JSON, Codec
from aenv.sdk.endpoints import Endpoint

CONTROL_PATIENCE = 90.0
CONTROL_TIMEOUT = httpx.Timeout(30, connect=5, read=CONTROL_PATIENCE)
"""A create may wait 45 s for a template that is being built."""
STATE_PATIENCE = 10.0
KEEPALIVE = 50
"""Seconds between the keepalive events asked of a stream; three missed ones mean that the peer is
gone.
"""
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
STREAM_TIMEOUT = httpx.Timeout(30, connect=5, read=3 * KEEPALIVE)
FEED_TIMEOUT = httpx.Timeout(3 * KEEPALIVE, connect=5)
"""What is fed may be slow to read it."""


class Client:
    """Bound to no event loop: connections are made per loop and forgotten when the loop changes."""

    def __init__(self, endpoint: Endpoint) -> None:
        self.endpoint = endpoint
        self._http: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def http(self) -> httpx.AsyncClient:
        loop = asyncio.get_running_loop()
        if self._http is None or self._loop is not loop:
            self._http, self._loop = self._make(), loop
        return self._http

    async def aclose(self) -> None:
        http, self._http = self._http, None
        if http is not None and self._loop is asyncio.get_running_loop():
            await http.aclose()

    async def call(
        self,
        method: str,
        path: str,
        *,
        json: Any = None,
        content: bytes | AsyncIterable[bytes] | None = None,
        params: Mapping[str, str | int] | None = None,
        headers: Mapping[str, str] | None = None,
        patience: float = CONTROL_PATIENCE,
    ) -> httpx.Response:
        """A control-plane call, answered within ``patience`` seconds. Raises the AenvError the
        server's answer stands for.
        """
        with _transport_errors(self.endpoint.url):
            answer = await self.http.request(
                method,
                path,
                json=json,
                content=content,
                params=params,
                headers={**self._credentials(), **(headers or {})},
                timeout=httpx.Timeout(30, connect=5, read=patience),
            )
        if answer.is_error:
            raise faults.from_response(
                answer.status_code,
                answer.content,
                retry_after=answer.headers.get("retry-after"),
                what=f"{method} {path}",
            )
        return answer

    async def pieces(
        self, path: str, *, params: Mapping[str, str | int], headers: Mapping[str, str]
    ) -> AsyncGenerator[bytes, None]:
        """What a GET answers, as it comes. Closing it hangs up."""
        with _transport_errors(self.endpoint.url):
            async with self.http.stream(
                "GET", path, params=params, headers=headers, timeout=STREAM_TIMEOUT
            ) as answer:
                if answer.is_error:
                    what = f"GET {path}"
                    raise faults.from_response(answer.status_code, await answer.aread(), what=what)
                async for piece in answer.aiter_bytes():
                    yield piece

    async def lines(self, method: str, path: str) -> AsyncGenerator[dict[str, Any], None]:
        """A control-plane call that answers lines of JSON, as they come. Closing it hangs up."""
        with _transport_errors(self.endpoint.url):
            async with self.http.stream(
                method, path, headers=self._credentials(), timeout=CONTROL_TIMEOUT
            ) as answer:
                if answer.is_error:
                    what = f"{method} {path}"
                    raise faults.from_response(answer.status_code, await answer.aread(), what=what)
                async for line in answer.aiter_lines():
                    yield loads(line)

    def _credentials(self) -> dict[str, str]:
        return {"x-api-key": self.endpoint.api_key} if self.endpoint.api_key else {}

    def _make(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self.endpoint.url,
            headers={"user-agent": f"aenv/{__version__} python/{sys.version.split()[0]}"},
            timeout=CONTROL_TIMEOUT,
            verify=self.endpoint.url.startswith("https://"),
            trust_env=not self.endpoint.loopback,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=32),
        )


class Agent:
    """One sandbox's guest agent, reached through the server's proxy by routing headers."""

    def __init__(self, client: Client, sandbox_id: str, access_token: str | None) -> None:
        self.client = client
        self.sandbox_id = sandbox_id
        self._token = access_token

    def headers(self, *, user: str | None = None, port: int = AGENT_PORT) -> dict[str, str]:
        found = {"e2b-sandbox-id": self.sandbox_id, "e2b-sandbox-port": str(port)}
        if self._token and port == AGENT_PORT:
            found["x-access-token"] = self._token
        if user:
            found["authorization"] = "Basic " + base64.b64encode(f"{user}:".encode()).decode()
        return found

    async def rpc(
        self, method: str, message: dict[str, Any], *, user: str | None = None
    ) -> dict[str, Any]:
        async with self._errors():
            return await connect.unary(self.client.http, method, message, self.headers(user=user))

    async def stream(
        self,
        method: str,
        message: dict[str, Any],
        *,
        user: str | None = None,
        timeout: float | None = None,
        quiet: bool = False,
        codec: Codec = JSON,
    ) -> AsyncGenerator[dict[str, Any], None]:
        """``timeout`` is the deadline the agent enforces; it kills the process then.

        ``quiet``: the agent logs nothing of the process's stdout.
        """
        headers = {**self.headers(user=user), "keepalive-ping-interval": str(KEEPALIVE)}
        if quiet:
            headers["x-aenv-stdout"] = "unlogged"
        if timeout is not None:
            headers["connect-timeout-ms"] = str(max(1, round(timeout * 1000)))
        async with self._errors():
            replies = connect.server_stream(
                self.client.http, method, message, headers, STREAM_TIMEOUT, codec
            )
            async with aclosing(replies):
                async for reply in replies:
                    yield reply

    async def send(
        self, method: str, messages: AsyncIterator[dict[str, Any]], codec: Codec
    ) -> None:
        """A call that is a stream of messages to the agent."""
        async with self._errors():
            await connect.client_stream(
                self.client.http, method, messages, self.headers(), FEED_TIMEOUT, codec
            )

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        content: bytes | AsyncIterator[bytes] | None = None,
    ) -> httpx.Response:
        """A plain HTTP request to the agent, read to its end."""
        async with self._errors():
            answer = await self.client.http.request(
                method,
                path,
                params=params,
                headers={**self.headers(), **(headers or {})},
                content=content,
                timeout=STREAM_TIMEOUT,
            )
            self._check(answer, answer.content, f"{method} {path}")
        return answer

    @asynccontextmanager
    async def download(
        self, path: str, *, params: Mapping[str, str]
    ) -> AsyncIterator[httpx.Response]:
        """A response whose body is read by the caller."""
        async with (
            self._errors(),
            self.client.http.stream(
                "GET",
                path,
                params=params,
                headers={**self.headers(), "accept-encoding": "identity"},
                timeout=STREAM_TIMEOUT,
            ) as answer,
        ):
            if answer.is_error:
                self._check(answer, await answer.aread(), f"GET {path}")
            yield answer

    @asynccontextmanager
    async def _errors(self) -> AsyncIterator[None]:
        """The proxy answers for a paused sandbox as for one that is gone, as E2B's does, and what
        is under way is cut by a pause as by an end: ask which it is.
        """
        try:
            with _transport_errors(self.client.endpoint.url, self.sandbox_id):
                yield
        except (SandboxNotFoundError, AgentUnreachableError) as error:
            if await self._paused():
                raise SandboxPausedError(
                    f"sandbox {self.sandbox_id} is paused; resume it with: "
                    f"aenv resume {self.sandbox_id} (in a program: Sandbox.connect)"
                ) from error
            raise

    async def _paused(self) -> bool:
        try:
            path = f"/sandboxes/{self.sandbox_id}"
            answer = await self.client.call("GET", path, patience=STATE_PATIENCE)
        except AenvError:
            return False
        return bool(answer.json().get("state") == SandboxState.PAUSED)

    @staticmethod
    def _check(answer: httpx.Response, content: bytes, what: str) -> None:
        if answer.is_error:
            raise faults.from_response(answer.status_code, content, what=what)


@contextmanager
def _transport_errors(url: str, sandbox_id: str | None = None) -> Iterator[None]:
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        advice = "check its URL and that host"
        if url.startswith("https:") and _is_no_tls(str(error)):
            advice = f"that port does not speak https; try http{url.removeprefix('https')}"
        elif httpx.URL(url).host in _LOOPBACK:
            advice = "start one with: aenv up"
        raise ServerUnreachableError(
            f"no aenv server answers at {url} ({error}); {advice}"
        ) from None
    except httpx.TransportError as error:
        detail = str(error) or type(error).__name__
        if sandbox_id is None:
            raise ServerUnreachableError(f"the server at {url} broke off: {detail}") from error
        raise AgentUnreachableError(
            f"the connection to sandbox {sandbox_id} was cut: it was killed, paused, reached its "
            f"end of life, or its agent hangs; see its log: aenv logs {sandbox_id} ({detail})"
        ) from error


def _is_no_tls(reason: str) -> bool:
    """Whether a port that accepted us answered the TLS handshake with something else, or hung
    up.
    """
    return not reason or "WRONG_VERSION_NUMBER" in reason or "EOF" in reason
