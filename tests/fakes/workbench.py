"""A guest's workbench in memory: files by path, commands by script."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass, field

from aenv.models.templates import GuestFacts
from aenv.node.workbench import CopyTarget, Ended, GuestCommand, Output, StepError, Workbench


@dataclass
class Script:
    """How guests behave. ``failing``: commands with their exit codes; ``refused``: users;
    ``gates``: commands that wait; ``errors``: raised by the command, one each; ``outputs``: what it
    writes. ``ran``: what was run, in all guests.
    """

    failing: dict[str, int] = field(default_factory=dict)
    refused: set[str] = field(default_factory=set)
    gates: dict[str, asyncio.Event] = field(default_factory=dict)
    errors: dict[str, Exception] = field(default_factory=dict)
    ran: list[GuestCommand] = field(default_factory=list)
    copied: list[tuple[CopyTarget, bytes]] = field(default_factory=list)
    folders: list[tuple[str, str]] = field(default_factory=list)
    packed: list[str] = field(default_factory=list)
    covered: list[str] = field(default_factory=list)
    users: list[str] = field(default_factory=list)
    written: dict[str, bytes] = field(default_factory=dict)
    outputs: dict[str, bytes] = field(default_factory=dict)
    declared: list[GuestFacts] = field(default_factory=list)

    @property
    def commands(self) -> list[str]:
        return [str(one.command) for one in self.ran]


class FakeWorkbench(Workbench):
    def __init__(self, script: Script) -> None:
        self._script = script

    async def run(self, command: GuestCommand) -> AsyncGenerator[Output | Ended, None]:
        self._script.ran.append(command)
        text = str(command.command)
        if command.user in self._script.refused:
            raise StepError(f"unauthenticated: invalid username: '{command.user}'")
        if text in self._script.gates:
            await self._script.gates[text].wait()
        if text in self._script.errors:
            raise self._script.errors.pop(text)
        yield Output("stdout", self._script.outputs.get(text, f"out of {text}\nund".encode()))
        yield Output("stderr", "möglich".encode()[:2])
        yield Output("stderr", "möglich".encode()[2:])
        last = text if isinstance(command.command, str) else command.command[-1]
        code = self._script.failing.get(text, int(last == "false"))
        yield Ended(code, f"exit status {code}")

    async def spawn(self, command: GuestCommand) -> AsyncGenerator[Output | Ended, None]:
        async for event in self.run(command):
            failed = isinstance(event, Ended) and event.exit_code
            if isinstance(event, Output) or failed:
                yield event
        await asyncio.Event().wait()

    async def unpack(self, archive: AsyncIterator[bytes], size: int, target: CopyTarget) -> int:
        self._script.copied.append((target, b"".join([chunk async for chunk in archive])))
        return 1

    async def pack(self, path: str) -> AsyncGenerator[bytes, None]:
        self._script.packed.append(path)
        yield f"packed {path} ".encode()
        yield self._script.outputs.get(path, b"")

    async def cover(self, path: str, user: str) -> None:
        self._script.covered.append(path)

    async def uncover(self, path: str) -> None:
        self._script.covered.remove(path)

    async def make_folder(self, path: str, user: str, *, keep: bool = False) -> None:
        self._script.folders.append((path, user))

    async def make_user(self, name: str) -> None:
        self._script.users.append(name)

    async def write_file(self, path: str, content: bytes) -> None:
        self._script.written[path] = content

    async def declare(self, facts: GuestFacts) -> None:
        self._script.declared.append(facts)
