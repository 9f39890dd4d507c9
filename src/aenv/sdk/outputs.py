"""Output of commands, collected within bounds and decoded across chunk borders."""

from __future__ import annotations

import codecs
import inspect
from collections import deque

from aenv.models.errors import QuotaExceededError
from aenv.sdk.events import Output, OutputCallback, StreamName

MAX_COLLECTED = 256 << 20
"""Bytes per stream that ``exec`` collects before it gives up; stream what is longer."""
MAX_KEPT = 8 << 20
"""Newest bytes kept per stream of a background process."""


class Collected:
    """The whole output of a command, by stream; QuotaExceededError past ``limit``."""

    def __init__(self, limit: int = MAX_COLLECTED) -> None:
        self._limit = limit
        self._streams: dict[StreamName, bytearray] = {
            "stdout": bytearray(),
            "stderr": bytearray(),
            "pty": bytearray(),
        }
        self.truncated = False

    def add(self, output: Output) -> None:
        stream = self._streams[output.stream]
        if len(stream) + len(output.data) > self._limit:
            raise QuotaExceededError(
                f"the command wrote more than {self._limit >> 20} MiB to {output.stream}; "
                "read it with stream(), or let it write to a file"
            )
        stream += output.data

    @property
    def stdout(self) -> bytes:
        return bytes(self._streams["stdout"] + self._streams["pty"])

    @property
    def stderr(self) -> bytes:
        return bytes(self._streams["stderr"])


class Tail:
    """The newest ``limit`` bytes of a background process's output, by stream."""

    def __init__(self, limit: int = MAX_KEPT) -> None:
        self._limit = limit
        self._chunks: dict[StreamName, deque[bytes]] = {
            "stdout": deque(),
            "stderr": deque(),
            "pty": deque(),
        }
        self._sizes: dict[StreamName, int] = {"stdout": 0, "stderr": 0, "pty": 0}
        self.truncated = False

    def add(self, output: Output) -> None:
        chunks = self._chunks[output.stream]
        chunks.append(output.data)
        self._sizes[output.stream] += len(output.data)
        while self._sizes[output.stream] > self._limit and len(chunks) > 1:
            self._sizes[output.stream] -= len(chunks.popleft())
            self.truncated = True

    @property
    def stdout(self) -> bytes:
        return b"".join((*self._chunks["stdout"], *self._chunks["pty"]))

    @property
    def stderr(self) -> bytes:
        return b"".join(self._chunks["stderr"])


class Listeners:
    """Calls callbacks with text; a character cut by a chunk border waits for its rest."""

    def __init__(
        self, on_stdout: OutputCallback | None = None, on_stderr: OutputCallback | None = None
    ) -> None:
        self._callbacks: dict[StreamName, OutputCallback | None] = {
            "stdout": on_stdout,
            "pty": on_stdout,
            "stderr": on_stderr,
        }
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders = {name: decoder("replace") for name in self._callbacks}

    async def hear(self, output: Output) -> None:
        if self._callbacks[output.stream] is not None:
            await self._call(output.stream, self._decoders[output.stream].decode(output.data))

    async def finish(self) -> None:
        """Pass on what was held back when the output ended inside a character."""
        for name, decoder in self._decoders.items():
            await self._call(name, decoder.decode(b"", final=True))

    async def _call(self, name: StreamName, text: str) -> None:
        callback = self._callbacks[name]
        if callback is None or not text:
            return
        answer = callback(text)
        if inspect.isawaitable(answer):
            await answer
