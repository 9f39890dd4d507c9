"""The firewall of one instance as it should be, and what keeps the kernel's like it.

The state lives here; the kernel's table is its image. When a change is refused or the table has
disappeared (another service flushed the ruleset, which would leave sandboxes unguarded), the whole
table is loaded again.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import socket
import struct
from collections.abc import Iterable

from aenv.models.egress import Egress
from aenv.models.errors import AenvError, EngineError
from aenv.node.host import Firewall
from aenv.node.network.rules import Table
from aenv.node.network.slot import Slot
from aenv.node.network.transactions import Transactions

log = logging.getLogger(__name__)

_WATCH_INTERVAL = 5.0
_EVENT_SIZE = 1 << 16
_MESSAGE = struct.Struct("=IH")
_TABLE_DELETED = 10 << 8 | 2


class Gate:
    def __init__(self, firewall: Firewall, *, watch_interval: float = _WATCH_INTERVAL) -> None:
        self._firewall = firewall
        self._transactions = Transactions(firewall)
        self._interval = watch_interval
        self._table: Table | None = None
        self._slots: dict[int, tuple[Slot, Egress]] = {}
        self._watcher: asyncio.Task[None] | None = None

    async def open(self, table: Table, slots: Iterable[tuple[Slot, Egress]]) -> None:
        """Put the table in force, replacing one of an earlier server in the same transaction."""
        self._table = table
        self._slots = {slot.index: (slot, egress) for slot, egress in slots}
        try:
            await self.reload()
        except BaseException:
            self._table = None  # nothing of ours to remove
            raise
        self._watcher = asyncio.create_task(self._watch(), name="aenv-gate")

    def egress(self, slot: Slot) -> Egress:
        """What the slot may reach. EngineError if it was not admitted."""
        if slot.index not in self._slots:
            raise EngineError(f"Network slot {slot.index} is not leased; its sandbox has ended.")
        return self._slots[slot.index][1]

    async def admit(self, slot: Slot) -> None:
        """Let a new slot out under the default policy."""
        self._slots[slot.index] = (slot, Egress())
        try:
            await self._change(self.table.admit(slot))
        except BaseException:
            self._slots.pop(slot.index, None)
            raise

    async def judge(self, slot: Slot, egress: Egress) -> None:
        """Replace what the slot may reach; on failure the old policy stays."""
        before = self.egress(slot)
        self._slots[slot.index] = (slot, egress)
        try:
            await self._change(self.table.judge(slot, egress, before))
        except (AenvError, OSError):
            self._slots[slot.index] = (slot, before)
            raise

    async def expel(self, slot: Slot) -> None:
        """Let nothing of the slot pass any more."""
        _, egress = self._slots.pop(slot.index)
        await self._change(self.table.expel(slot, egress))

    async def replace(self, table: Table) -> None:
        """Put another table in force, its slots and policies unchanged."""
        self._table = table
        await self.reload()

    async def reload(self) -> None:
        await self._transactions.load(self.table.load(self._slots.values()))

    async def close(self, *, remove: bool) -> None:
        """Stop watching; ``remove`` the table when no sandbox needs it."""
        if self._watcher is not None:
            self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        if remove and self._table is not None:
            await self._transactions.load(self._table.unload())

    @property
    def table(self) -> Table:
        if self._table is None:
            raise EngineError("The firewall has not been loaded; start the slot pool first.")
        return self._table

    async def _change(self, script: str) -> None:
        try:
            await self._transactions.load(script)
        except AenvError as error:
            log.warning("loading the firewall anew: %s", error)
            await self.reload()

    async def _watch(self) -> None:
        with self._firewall.changes() as changes:
            while True:
                await self._something_changed(changes)
                try:
                    tables = await asyncio.to_thread(self._firewall.tables)
                    if self.table.name not in tables:
                        log.warning("our firewall table was removed by somebody; loading it again")
                        await self.reload()
                except (AenvError, OSError) as error:
                    log.error("the firewall cannot be checked: %s", error)
                    await asyncio.sleep(self._interval)

    async def _something_changed(self, changes: socket.socket) -> None:
        """Return when a table may have been deleted, at the latest after the interval."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._interval):
                while True:
                    try:
                        if _deletes_a_table(await loop.sock_recv(changes, _EVENT_SIZE)):
                            return
                    except OSError as error:
                        if error.errno == errno.ENOBUFS:  # events were lost: look
                            return
                        raise


def _deletes_a_table(messages: bytes) -> bool:
    """Whether a netlink message of this kind is among them (nf_tables.h)."""
    offset = 0
    while offset + _MESSAGE.size <= len(messages):
        length, kind = _MESSAGE.unpack_from(messages, offset)
        if kind == _TABLE_DELETED:
            return True
        offset += max(_MESSAGE.size, (length + 3) & ~3)
    return False
