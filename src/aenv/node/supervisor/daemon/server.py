"""Requests of clients: one ``_op_`` method each."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable

from .children import Children, Run
from .connections import Connection
from .journal import Journal, Record
from .loop import Loop
from .processes import Ending

PROTOCOL = 1
_MAX_CAPTURE = 256 * 1024

Reply = dict[str, object]


class Server:
    """Ends by itself once nothing runs and nobody is connected for ``idle`` seconds."""

    def __init__(self, loop: Loop, listener: socket.socket, journal: Journal, idle: float) -> None:
        self._loop = loop
        self._listener = listener
        self._idle = idle
        self._idle_since = time.monotonic()
        self._connections: set[Connection] = set()
        self._children = Children(loop, journal, self._announce)
        listener.setblocking(False)
        loop.watch(listener.fileno(), self._accept)
        loop.at(time.monotonic() + idle, self._consider_leaving)

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return
        self._connections.add(Connection(self._loop, sock, self._handle, self._disconnected))

    def _disconnected(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._idle_since = time.monotonic()
        if self._idle == 0:
            self._consider_leaving()

    def _consider_leaving(self) -> None:
        now = time.monotonic()
        if self._connections or self._children.busy:
            self._idle_since = now
        elif now - self._idle_since >= self._idle:
            self._loop.stopped = True
            return
        self._loop.at(self._idle_since + max(self._idle, 1), self._consider_leaving)

    def _announce(self, record: Record) -> None:
        for connection in list(self._connections):
            connection.send({"event": "exit", "record": record.as_json()})

    def _handle(self, connection: Connection, request: dict[str, object]) -> None:
        def reply(message: Reply) -> None:
            connection.send({"id": request.get("id"), **message})

        try:
            operation = getattr(self, f"_op_{request['op']}")
            operation(request, reply)
        except AttributeError:
            reply({"error": f"unknown operation {request.get('op')!r}"})
        except (KeyError, TypeError, ValueError) as error:
            reply({"error": f"malformed request: {error!r}"})
        except OSError as error:
            reply({"error": str(error)})

    def _op_hello(self, request: dict[str, object], reply: Callable[[Reply], None]) -> None:
        reply({"protocol": PROTOCOL, "pid": os.getpid()})

    def _op_run(self, request: dict[str, object], reply: Callable[[Reply], None]) -> None:
        def done(run: Run, ending: Ending) -> None:
            reply(
                {
                    **ending.as_json(),
                    "stdout": run.out.tail.text(),
                    "stderr": run.err.tail.text() if run.err is not run.out else "",
                    "truncated": run.out.tail.truncated or run.err.tail.truncated,
                    "timed_out": run.timed_out,
                }
            )

        limit = min(int(str(request.get("capture", 65536))), _MAX_CAPTURE)
        self._children.run(
            _strings(request["argv"]),
            _environment(request.get("env")),
            _text(request.get("cwd")),
            float(str(request["timeout"])),
            limit,
            _text(request.get("console")),
            done,
        )

    def _op_spawn(self, request: dict[str, object], reply: Callable[[Reply], None]) -> None:
        record = self._children.spawn(
            self._new_key(request),
            _strings(request["argv"]),
            _environment(request.get("env")),
            _text(request.get("cwd")),
            str(request["console"]),
        )
        reply({"record": record.as_json()})

    def _op_watch(self, request: dict[str, object], reply: Callable[[Reply], None]) -> None:
        record = self._children.watch(
            self._new_key(request), int(str(request["pid"])), _text(request.get("console"))
        )
        reply({"record": record.as_json()})

    def _op_status(self, request: dict[str, object], reply: Callable[[Reply], None]) -> None:
        record = self._find(request)
        reply({"record": record and record.as_json()})

    def _op_records(self, request: dict[str, object], reply: Callable[[Reply], None]) -> None:
        records = self._children.journal.records.values()
        reply({"records": [record.as_json() for record in records]})

    def _op_signal(self, request: dict[str, object], reply: Callable[[Reply], None]) -> None:
        record = self._find(request)
        number = int(str(request["signal"]))
        sent = record is not None and self._children.signal(
            record, number, bool(request.get("group"))
        )
        reply({"sent": sent})

    def _op_output(self, request: dict[str, object], reply: Callable[[Reply], None]) -> None:
        record = self._find(request)
        reply({"output": self._children.output(record) if record else ""})

    def _op_forget(self, request: dict[str, object], reply: Callable[[Reply], None]) -> None:
        record = self._find(request)
        if record is not None and record.ending is None:
            raise ValueError(f"{record.key} still runs as pid {record.pid}")
        if record is not None:
            self._children.forget(record)
        reply({})

    def _op_drop(self, request: dict[str, object], reply: Callable[[Reply], None]) -> None:
        self._children.drop_console(str(request["console"]))
        reply({})

    def _op_retire(self, request: dict[str, object], reply: Callable[[Reply], None]) -> None:
        self._idle = 0
        reply({})

    def _op_shutdown(self, request: dict[str, object], reply: Callable[[Reply], None]) -> None:
        self._loop.stopped = True
        reply({})

    def _find(self, request: dict[str, object]) -> Record | None:
        return self._children.journal.records.get(str(request["key"]))

    def _new_key(self, request: dict[str, object]) -> str:
        record = self._find(request)
        if record is not None and record.ending is None:
            raise ValueError(f"{record.key} is taken by pid {record.pid}")
        return str(request["key"])


def _strings(value: object) -> list[str]:
    if not isinstance(value, list) or not value:
        raise TypeError("argv must be a list of strings")
    return [str(item) for item in value]


def _environment(value: object) -> dict[str, str]:
    if value is None:
        return dict(os.environ)
    if not isinstance(value, dict):
        raise TypeError("env must be an object")
    return {str(name): str(content) for name, content in value.items()}


def _text(value: object) -> str | None:
    return None if value is None else str(value)
