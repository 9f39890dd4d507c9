"""A small client for the Connect protocol: unary calls and streams.

Protocol: https://connectrpc.com/docs/protocol. A stream is a sequence of envelopes, each one byte
of flags, four bytes of big-endian length and a message; the last one has flag 2, is JSON and may
carry an error.
"""

from __future__ import annotations

import struct
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from aenv.models.errors import AgentUnreachableError, InfrastructureError
from aenv.sdk import faults
from aenv.sdk._httpx import httpx
from aenv.sdk.codecs import JSON, Codec

_HEADER = struct.Struct(">BI")
_COMPRESSED = 0b01
_END_OF_STREAM = 0b10
_MAX_MESSAGE = 64 << 20
_REASON = "x-aenv-reason"


def envelope(message: dict[str, Any], *, flags: int = 0, codec: Codec = JSON) -> bytes:
    payload = codec.encode(message)
    return _HEADER.pack(flags, len(payload)) + payload


class EnvelopeReader:
    """Cuts a byte stream into messages, whatever the chunk borders are."""

    def __init__(self, codec: Codec = JSON) -> None:
        self._codec = codec
        self._buffer = bytearray()
        self._end: dict[str, Any] = {}
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
            if flags & _COMPRESSED:
                raise InfrastructureError("the agent sent a compressed message nobody asked for")
            payload = bytes(self._buffer[_HEADER.size : end])
            del self._buffer[:end]
            if flags & _END_OF_STREAM:
                self.ended = True
                self._end = JSON.decode(payload)
                break
            messages.append(self._codec.decode(payload))
        return messages

    def check_end(self) -> None:
        """Raise what the last frame says, or that it never came."""
        if error := self._end.get("error"):
            raise faults.from_rpc(
                str(error.get("code", "")), str(error.get("message", "")), self._reason()
            )
        if not self.ended:
            raise AgentUnreachableError(
                "the connection to the sandbox was cut: it was killed, paused or reached its end "
                "of life"
            )

    def _reason(self) -> str:
        metadata = self._end.get("metadata") or {}
        values = (value for name, value in metadata.items() if name.lower() == _REASON)
        return next((str(value[0]) for value in values if value), "")


async def unary(
    http: httpx.AsyncClient, method: str, message: dict[str, Any], headers: dict[str, str]
) -> dict[str, Any]:
    """Call ``package.Service/Method`` and return its reply."""
    answer = await http.post(
        f"/{method}",
        content=JSON.encode(message),
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
    codec: Codec = JSON,
) -> AsyncGenerator[dict[str, Any], None]:
    """Call a server-streaming method and yield its messages; closing the iterator closes the
    connection.
    """
    request = http.build_request(
        "POST",
        f"/{method}",
        content=envelope(message, codec=codec),
        headers={**_stream_headers(codec), **headers},
        timeout=timeout,
    )
    answer = await http.send(request, stream=True)
    try:
        if answer.status_code != 200:
            raise faults.from_response(answer.status_code, await answer.aread(), what=method)
        reader = EnvelopeReader(codec)
        async for chunk in answer.aiter_raw():
            for reply in reader.feed(chunk):
                yield reply
        reader.check_end()
    finally:
        await answer.aclose()


async def client_stream(
    http: httpx.AsyncClient,
    method: str,
    messages: AsyncIterator[dict[str, Any]],
    headers: dict[str, str],
    timeout: httpx.Timeout,
    codec: Codec = JSON,
) -> None:
    """Call a client-streaming method whose reply says nothing; the error it may end with is
    raised.
    """

    async def envelopes() -> AsyncIterator[bytes]:
        async for message in messages:
            yield envelope(message, codec=codec)

    answer = await http.post(
        f"/{method}",
        content=envelopes(),
        headers={**_stream_headers(codec), **headers},
        timeout=timeout,
    )
    if answer.status_code != 200:
        raise faults.from_response(answer.status_code, answer.content, what=method)
    reader = EnvelopeReader(codec)
    reader.feed(answer.content)
    reader.check_end()


def _stream_headers(codec: Codec) -> dict[str, str]:
    return {
        "content-type": f"application/connect+{codec.name}",
        "connect-protocol-version": "1",
        "accept-encoding": "identity",
    }
