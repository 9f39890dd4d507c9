"""A small client for the Connect protocol: JSON codec, unary calls and server streams.

Protocol: https://connectrpc.com/docs/protocol. A stream is a sequence of envelopes, each one byte
of flags, four bytes of big-endian length and a JSON message; the last one has flag 2 and may carry
an error.
"""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncGenerator
from typing import Any

from aenv.models.errors import AgentUnreachableError, InfrastructureError
from aenv.sdk import faults
from aenv.sdk._httpx import httpx

_HEADER = struct.Struct(">BI")
_COMPRESSED = 0b01
_END_OF_STREAM = 0b10
_MAX_MESSAGE = 64 << 20


def envelope(message: dict[str, Any], *, flags: int = 0) -> bytes:
    payload = json.dumps(message, separators=(",", ":")).encode()
    return _HEADER.pack(flags, len(payload)) + payload


class EnvelopeReader:
    """Cuts a byte stream into messages, whatever the chunk borders are."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._error: dict[str, Any] | None = None
        self.ended = False

    def feed(self, chunk: bytes) -> list[dict[str, Any]]:
        """Messages completed by ``chunk``; what follows the last frame is ignored."""
        messages: list[dict[str, Any]] = []
        if self.ended:
            return messages
        self._buffer += chunk
        while len(self._buffer) >= _HEADER.size:
            flags, length = _HEADER.unpack_from(self._buffer)
            if length > _MAX_MESSAGE:
                raise InfrastructureError(f"the agent announced a message of {length} bytes")
            end = _HEADER.size + length
            if len(self._buffer) < end:
                break
            message = self._decode(flags, bytes(self._buffer[_HEADER.size : end]))
            del self._buffer[:end]
            if flags & _END_OF_STREAM:
                self.ended = True
                self._error = message.get("error")
                break
            messages.append(message)
        return messages

    def check_end(self) -> None:
        """Raise what the last frame says, or that it never came."""
        if self._error:
            raise faults.from_rpc(
                str(self._error.get("code", "")), str(self._error.get("message", ""))
            )
        if not self.ended:
            raise AgentUnreachableError(
                "the connection to the sandbox was cut: it was killed or reached its end of life"
            )

    @staticmethod
    def _decode(flags: int, payload: bytes) -> dict[str, Any]:
        if flags & _COMPRESSED:
            raise InfrastructureError("the agent sent a compressed message that nobody asked for")
        try:
            message = json.loads(payload or b"{}")
        except ValueError as error:
            raise InfrastructureError(f"the agent sent a malformed message: {error}") from error
        if not isinstance(message, dict):
            raise InfrastructureError("the agent sent a message that is no object")
        return message


async def unary(
    http: httpx.AsyncClient, method: str, message: dict[str, Any], headers: dict[str, str]
) -> dict[str, Any]:
    """Call ``package.Service/Method`` and return its reply."""
    answer = await http.post(
        f"/{method}",
        content=json.dumps(message, separators=(",", ":")).encode(),
        headers={"content-type": "application/json", "connect-protocol-version": "1", **headers},
    )
    if answer.status_code != 200:
        raise faults.from_response(answer.status_code, answer.content, what=method)
    reply = answer.json()
    return reply if isinstance(reply, dict) else {}


async def server_stream(
    http: httpx.AsyncClient,
    method: str,
    message: dict[str, Any],
    headers: dict[str, str],
    timeout: httpx.Timeout,
) -> AsyncGenerator[dict[str, Any], None]:
    """Call a server-streaming method and yield its messages; closing the iterator closes the
    connection.
    """
    request = http.build_request(
        "POST",
        f"/{method}",
        content=envelope(message),
        headers={
            "content-type": "application/connect+json",
            "connect-protocol-version": "1",
            "accept-encoding": "identity",
            **headers,
        },
        timeout=timeout,
    )
    answer = await http.send(request, stream=True)
    try:
        if answer.status_code != 200:
            raise faults.from_response(answer.status_code, await answer.aread(), what=method)
        reader = EnvelopeReader()
        async for chunk in answer.aiter_raw():
            for reply in reader.feed(chunk):
                yield reply
        reader.check_end()
    finally:
        await answer.aclose()
