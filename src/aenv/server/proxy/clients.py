"""The port between an exchange and the connection of its client."""

from __future__ import annotations

import asyncio
from typing import Protocol

from aenv.server.proxy.replies import Reply


class Client(Protocol):
    """The client connection, as an exchange sees it."""

    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop
    write_paused: bool
    closing: bool

    def guest_pauses(self, paused: bool) -> None: ...

    def guest_upgrades(self) -> None: ...

    def guest_half_closes(self) -> None: ...

    def guest_finished(self, *, close: bool) -> None: ...

    def guest_fails(self, reply: Reply) -> None: ...

    def guest_hangs_up(self, *, reset: bool) -> None: ...
