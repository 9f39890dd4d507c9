"""A gate that remembers what it holds."""

from __future__ import annotations


class FakeGate:
    def __init__(self) -> None:
        self.held: set[str] = set()

    async def hold(self, sandbox_id: str) -> None:
        self.held.add(sandbox_id)

    async def release(self, sandbox_id: str) -> None:
        self.held.discard(sandbox_id)
