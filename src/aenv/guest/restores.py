"""Registration with the guest agent, and the callbacks.

One daemon thread per process waits on the agent's Unix socket (``agent/README.md``, "After a
restore"). It sleeps in the kernel, also across a checkpoint. Outside of a sandbox there is no
socket and nothing ever happens.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
import traceback
from dataclasses import dataclass
from typing import Callable, List, Optional, TypeVar  # noqa: UP035  Python 3.8

from aenv.guest.reseeding import reseed

SOCKET = "/run/aenv/restore.sock"
_RECONNECT = 1.0


@dataclass(frozen=True)
class Restore:
    """``mode``: ``"fork"`` (a copy, with a new identity) or ``"resume"`` (the same sandbox again).

    ``away`` is the time since the snapshot in seconds, by which both clocks have jumped;
    ``life_id`` names this restore and no other.
    """

    mode: str
    sandbox_id: str
    life_id: str
    away: float


_Callback = TypeVar("_Callback", bound=Callable[[Restore], object])


def on_restore(callback: _Callback) -> _Callback:
    """Call ``callback(restore)`` in a thread of its own after each restore of this sandbox.

    Callbacks run one after the other in the order of registration, after the random generators were
    reseeded; together they have two seconds before the restore goes on without them. One that
    raises is reported and does not keep the others from running. Usable as a decorator.
    """
    _listener.callbacks.append(callback)
    _listener.start()
    return callback


class _Listener:
    def __init__(self) -> None:
        self.callbacks: List[Callable[[Restore], object]] = []  # noqa: UP006
        self._connection: Optional[socket.socket] = None  # noqa: UP045
        self._starting = threading.Lock()

    def start(self) -> None:
        """Register this process, unless it is registered or this is no sandbox."""
        with self._starting:
            if self._connection is not None:
                return
            self._connection = _connect()
            if self._connection is not None:
                threading.Thread(target=self._listen, name="aenv-restore", daemon=True).start()

    def start_again(self) -> None:
        """In a child of ``os.fork``: it has the connection of its parent, but not the thread."""
        inherited, self._connection = self._connection, None
        self._starting = threading.Lock()
        if inherited is not None:
            inherited.close()
            self.start()

    def _listen(self) -> None:
        connection = self._connection
        while connection is not None:
            try:
                with connection, connection.makefile("rb") as lines:
                    for line in lines:
                        connection.sendall(self._handle(line).encode() + b"\n")
            except OSError:
                pass
            time.sleep(_RECONNECT)  # the agent has let go of us
            connection = self._connection = _connect()

    def _handle(self, line: bytes) -> str:
        """Returns the answer: ``done``, or what went wrong in one line."""
        try:
            told = json.loads(line)
            restore = Restore(
                str(told["mode"]), str(told["sandboxId"]), str(told["lifeId"]), float(told["away"])
            )
        except (ValueError, LookupError, TypeError) as error:
            return f"not understood: {error!r}"
        failures = reseed() if restore.mode == "fork" else []
        for callback in list(self.callbacks):
            try:
                callback(restore)
            except Exception as error:  # noqa: BLE001  the caller's code
                traceback.print_exc()
                failures.append(f"{getattr(callback, '__qualname__', callback)}: {error!r}")
        return " ".join("; ".join(failures).split())[:500] or "done"


def _connect() -> Optional[socket.socket]:  # noqa: UP045
    if not hasattr(socket, "AF_UNIX"):
        return None
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(SOCKET)
    except OSError:
        connection.close()
        return None
    return connection


_listener = _Listener()
_listener.start()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_listener.start_again)
