"""What goes over the wire between the host and a guest agent, and how it is read.

Everything that comes back was written inside the sandbox: it is bounded, and its types are checked.
"""

from __future__ import annotations

import json
import struct
from base64 import b64decode
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from aenv.models.errors import AgentUnreachableError
from aenv.node.http1 import Reply

MAX_ANSWER = 64 * 1024
"""Bytes of an answer that holds a few numbers."""
MAX_LINES = 8 * 1024 * 1024
"""Bytes of a page of log lines: a MiB of text, escaped at its worst."""
_MAX_MESSAGE = 16 * 1024
_MAX_EVENT = 4 * 1024 * 1024
_MAX_FAILURES = 32


@dataclass(frozen=True, slots=True)
class AgentInit:
    """The body of ``POST /init``. None and empty fields are left as they are in the guest.

    ``restored``: memory or disk come from a snapshot; then ``life_id`` names this restore, once.
    ``resumed``: it is the same sandbox again, which keeps its identity. ``away``: seconds since the
    snapshot. ``next_verifier``: sha256 of the host secret that is valid from now on, in hex.
    """

    sandbox_id: str = ""
    template_id: str = ""
    access_token: str = field(default="", repr=False)
    env_vars: Mapping[str, str] | None = field(default=None, repr=False)
    default_user: str = ""
    default_workdir: str = ""
    hostname: str = ""
    hosts: str = ""
    dns_servers: tuple[str, ...] = ()
    secret_env: tuple[str, ...] | None = None
    next_verifier: str = ""
    restored: bool = False
    resumed: bool = False
    life_id: str = ""
    away: float = 0.0
    machine_id: str = ""

    def body(self) -> bytes:
        fields: dict[str, Any] = {
            "sandboxId": self.sandbox_id,
            "templateId": self.template_id,
            "accessToken": self.access_token,
            "envVars": None if self.env_vars is None else dict(self.env_vars),
            "defaultUser": self.default_user,
            "defaultWorkdir": self.default_workdir,
            "hostname": self.hostname,
            "hosts": self.hosts,
            "dnsServers": list(self.dns_servers),
            "nextVerifier": self.next_verifier,
            "restored": self.restored,
            "resumed": self.resumed,
            "lifeId": self.life_id,
            "away": self.away,
            "machineId": self.machine_id,
        }
        sent = {name: value for name, value in fields.items() if value or value == {}}
        if self.secret_env is not None:
            sent["secretEnv"] = list(self.secret_env)
        sent["timestamp"] = datetime.now(UTC).isoformat().replace("+00:00", "Z")
        return json.dumps(sent).encode()


@dataclass(frozen=True, slots=True)
class AgentLine:
    """One entry of the agent's ring; ``seq`` is the agent's own count."""

    seq: int
    timestamp: float
    stream: str
    level: str
    message: str
    fields: dict[str, str]


@dataclass(frozen=True, slots=True)
class AgentLines:
    """``dropped``: entries the ring lost before the first one here; ``size``: bytes received.

    ``next`` is what to ask for next; less than what was asked for if the guest was set back.
    """

    lines: tuple[AgentLine, ...]
    next: int
    dropped: int
    size: int


@dataclass(frozen=True, slots=True)
class AgentMetrics:
    """The guest's own view, in bytes and per cent."""

    cpu_count: float
    cpu_used_pct: float
    mem_used: int
    mem_total: int
    mem_cache: int
    disk_used: int
    disk_total: int


@dataclass(frozen=True, slots=True)
class CommandResult:
    exit_code: int
    output: str


def read_failures(reply: Reply) -> tuple[str, ...]:
    """What ``/init`` could not do after a restore."""
    if reply.status != 200:
        expect(reply, 204, "/init")
        return ()
    failures = _json_object(reply.body, "/init").get("failures")
    if not isinstance(failures, list):
        raise AgentUnreachableError("the guest agent answered /init with nonsense")
    return tuple(str(failure)[:_MAX_MESSAGE] for failure in failures[:_MAX_FAILURES])


def read_metrics(reply: Reply) -> AgentMetrics:
    found = _json_object(expect(reply, 200, "/metrics"), "/metrics")
    return AgentMetrics(
        cpu_count=_number(found, "cpu_count"),
        cpu_used_pct=_number(found, "cpu_used_pct"),
        mem_used=int(_number(found, "mem_used")),
        mem_total=int(_number(found, "mem_total")),
        mem_cache=int(_number(found, "mem_cache")),
        disk_used=int(_number(found, "disk_used")),
        disk_total=int(_number(found, "disk_total")),
    )


def read_lines(reply: Reply, *, after: int, limit: int) -> AgentLines:
    found = _json_object(expect(reply, 200, "/aenv/logs"), "/aenv/logs")
    entries = found.get("entries") or []
    if not isinstance(entries, list):
        raise _nonsense("/aenv/logs")
    try:
        read = [_line(entry) for entry in entries[:limit]]
    except RecursionError:
        raise _nonsense("/aenv/logs") from None
    lines = tuple(line for line in read if line is not None and line.seq > after)
    last = max([line.seq for line in lines], default=after)
    return AgentLines(
        lines,
        next=min(last, max(0, int(_number(found, "next", last)))),
        dropped=max(0, int(_number(found, "dropped"))),
        size=len(reply.body),
    )


async def process_events(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The ``event`` of each message of a Connect stream; an error at its end is raised."""
    async for message in process_messages(chunks):
        if error := message.get("error"):
            raise AgentUnreachableError(f"the guest agent refused a command: {error}")
        if isinstance(event := message.get("event"), dict):
            yield event


async def process_messages(chunks: AsyncIterator[bytes]) -> AsyncIterator[dict[str, Any]]:
    """The messages of a Connect stream; one with an ``error`` may be its last."""
    buffer = bytearray()
    async for chunk in chunks:
        buffer += chunk
        while len(buffer) >= 5:
            flags, length = struct.unpack_from(">BI", buffer)
            if length > _MAX_EVENT:
                raise _nonsense("process.Process/Start")
            if len(buffer) < 5 + length:
                break
            message = _json_object(bytes(buffer[5 : 5 + length]), "process.Process/Start")
            del buffer[: 5 + length]
            if flags & 2:
                if message.get("error"):
                    yield message
                return
            yield message


def output_of(event: Mapping[str, Any]) -> bytes:
    """What a command wrote, by one event of its stream."""
    data = event.get("data")
    if not isinstance(data, dict):
        return b""
    try:
        return b"".join(b64decode(part) for part in data.values())
    except (TypeError, ValueError):
        raise _nonsense("process.Process/Start") from None


def exit_code_of(event: Mapping[str, Any]) -> int | None:
    """None while the command runs."""
    end = event.get("end")
    if end is None:
        return None
    return int(_number(end, "exitCode")) if isinstance(end, dict) else 0


def envelope(message: bytes) -> bytes:
    return struct.pack(">BI", 0, len(message)) + message


def expect(reply: Reply, status: int, what: str) -> bytes:
    if reply.status != status:
        said = reply.body[:300].decode(errors="replace").strip()
        raise AgentUnreachableError(
            f"the guest agent answered {what} with HTTP {reply.status}, not {status}: {said}"
        )
    return reply.body


def _nonsense(what: str) -> AgentUnreachableError:
    return AgentUnreachableError(f"the guest agent answered {what} with nonsense")


def _json_object(body: bytes, what: str) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise AgentUnreachableError(f"the guest agent answered {what} with something but JSON")
    return found


def _number(found: dict[str, Any], name: str, default: float = 0) -> float:
    value = found.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 2**63:
        return default
    return value


def _line(entry: object) -> AgentLine | None:
    if not isinstance(entry, dict):
        return None
    fields = entry.get("fields")
    return AgentLine(
        seq=int(_number(entry, "seq")),
        timestamp=_timestamp(entry.get("timestamp")),
        stream=_text(entry.get("stream", "system"), 16),
        level=_text(entry.get("level", "info"), 16),
        message=_text(entry.get("message", ""), _MAX_MESSAGE),
        fields={_text(k, 64): _text(v, 1024) for k, v in list(fields.items())[:16]}
        if isinstance(fields, dict)
        else {},
    )


def _text(value: object, limit: int) -> str:
    """Without lone surrogates, which JSON can hold and UTF-8 cannot."""
    return str(value)[:limit].encode("utf-8", "replace").decode()


def _timestamp(value: object) -> float:
    if isinstance(value, str):
        try:
            return datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            return 0.0
    if isinstance(value, int | float) and abs(value) < 2**40:
        return float(value)
    return 0.0
