"""Watching a directory of a sandbox."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from types import TracebackType
from typing import Any

from aenv.models.errors import InfrastructureError
from aenv.sdk.client import Agent
from aenv.sdk.results import FileEvent


class AsyncWatch:
    """Iterate it for changes; close it (or leave its context) to stop."""

    def __init__(self, replies: AsyncGenerator[dict[str, Any], None]) -> None:
        self._replies = replies

    async def __aiter__(self) -> AsyncGenerator[FileEvent, None]:
        async for reply in self._replies:
            event = _event(reply).get("filesystem")
            if event:
                yield FileEvent.from_wire(event)

    async def close(self) -> None:
        await self._replies.aclose()

    async def __aenter__(self) -> AsyncWatch:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()


async def start(
    agent: Agent, path: str, *, recursive: bool = False, user: str | None = None
) -> AsyncWatch:
    """Returns once the agent said that it watches."""
    replies = agent.stream(
        "filesystem.Filesystem/WatchDir", {"path": path, "recursive": recursive}, user=user
    )
    try:
        async for reply in replies:
            if "start" in _event(reply):
                return AsyncWatch(replies)
    except BaseException:
        await replies.aclose()
        raise
    raise InfrastructureError("the agent did not say that it watches")


def _event(reply: dict[str, Any]) -> dict[str, Any]:
    """Accept the event bare or inside ``event`` (the field is a protobuf oneof in both forms)."""
    inner = reply.get("event")
    return inner if isinstance(inner, dict) else reply
