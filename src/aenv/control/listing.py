"""Lists of sandboxes: filters, order, and cursors that stay right while sandboxes come and go."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, unquote

from aenv.models.errors import InvalidRequestError
from aenv.models.sandboxes import SandboxState
from aenv.store.records import SandboxRecord
from aenv.store.sandboxes import Page

MAX_LIMIT = 100
STATES = {
    "running": (SandboxState.RUNNING, SandboxState.PAUSING),
    "paused": (SandboxState.PAUSED, SandboxState.RESUMING),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ListRequest:
    """A list as asked for, decoded. ``limit`` None: all in one page."""

    states: Sequence[str] = ("running", "paused")
    labels: dict[str, str] = field(default_factory=dict)
    template: str | None = None
    started_after: int | None = None
    ascending: bool = False
    limit: int | None = MAX_LIMIT
    token: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """``next_token`` is None on the last page; ``running`` counts all running ones the filters
    match.
    """

    sandboxes: list[SandboxRecord]
    next_token: str | None
    running: int


def page(request: ListRequest, *, team: str, template: str | None, now: int) -> Page:
    """The catalog's question; one row more than the page holds, to see whether there is a next."""
    states = [state for name in request.states for state in _states(name)]
    after = decoded(request.token, ascending=request.ascending) if request.token else None
    return Page(
        team=team,
        states=tuple(states),
        alive_at=now,
        labels=request.labels,
        template=template,
        started_after=request.started_after,
        ascending=request.ascending,
        after=after,
        limit=None if request.limit is None else request.limit + 1,
    )


def token_after(record: SandboxRecord, *, ascending: bool) -> str:
    """``base64url({RFC3339Nano}__{id}[__asc])``, as E2B's cursors."""
    return token(record.started_at, record.id, ascending=ascending)


def token(moment: int, name: str, *, ascending: bool = False) -> str:
    text = f"{nanosecond_time(moment)}__{name}{'__asc' if ascending else ''}"
    return base64.urlsafe_b64encode(text.encode()).decode()


def metadata_filter(encoded: str) -> dict[str, str]:
    """Both SDKs encode three times: the query's own decoding was the first, this does the other
    two.
    """
    pairs = parse_qsl(encoded, keep_blank_values=True, max_num_fields=100)
    return {unquote(key): unquote(value) for key, value in pairs}


def nanosecond_time(nanoseconds: int) -> str:
    seconds, rest = divmod(nanoseconds, 1_000_000_000)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{rest:09d}Z"


def nanoseconds(text: str, name: str) -> int:
    """An RFC 3339 time, up to nine digits behind the point; InvalidRequestError names ``name``."""
    try:
        moment = datetime.fromisoformat(text)
        whole = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).replace(microsecond=0)
        digits = ""
        if "." in text:
            behind = text.split(".", 1)[1]
            digits = behind[: next((i for i, c in enumerate(behind) if not c.isdigit()), None)]
        found = int((whole - _EPOCH).total_seconds()) * 1_000_000_000
        found += int(digits[:9].ljust(9, "0"))
    except (ValueError, OverflowError) as error:
        raise InvalidRequestError(f"{name}: {text[:64]!r} is not an RFC 3339 time") from error
    return found


def _states(name: str) -> tuple[SandboxState, ...]:
    if name not in STATES:
        raise InvalidRequestError(f"state: {name[:64]!r} is neither running nor paused")
    return STATES[name]


def decoded(token: str, *, ascending: bool = False) -> tuple[int, str]:
    """The time and id in a token of ours. InvalidRequestError for any other."""
    try:
        padded = token + "=" * (-len(token) % 4)
        parts = (
            base64.b64decode(padded.encode(), altchars=b"-_", validate=True).decode().split("__")
        )
        time, sandbox_id, *rest = parts
        if rest not in ([], ["asc"]):
            raise ValueError("trailing parts")
    except (ValueError, binascii.Error) as error:
        raise InvalidRequestError("nextToken: not a token this server gave out") from error
    if bool(rest) != ascending:
        raise InvalidRequestError("nextToken: it belongs to a list in the other order")
    return nanoseconds(time, "nextToken"), sandbox_id
