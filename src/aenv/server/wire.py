"""The shape of every body: camelCase with ID and MB in capitals, strict types, times in RFC 3339
with Z.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic.alias_generators import to_camel

DEEPEST = 64
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def wire_name(name: str) -> str:
    """``sandbox_id`` → ``sandboxID``, ``memory_mb`` → ``memoryMB``, ``env_vars`` → ``envVars``."""
    camel = re.sub(r"Id(?=[A-Z]|$)", "ID", to_camel(name))
    return re.sub(r"Mb$", "MB", camel)


class Reply(BaseModel):
    model_config = ConfigDict(alias_generator=wire_name, populate_by_name=True)


class Body(BaseModel):
    """What callers send. Types are not coerced; fields that newer clients may add are ignored."""

    model_config = ConfigDict(alias_generator=wire_name, strict=True, extra="ignore")

    @model_validator(mode="before")
    @classmethod
    def _refuse_what_cannot_be_kept(cls, data: Any) -> Any:
        _check(data)
        return data


class StrictBody(Body):
    """For what must never be accepted and ignored."""

    model_config = ConfigDict(extra="forbid")


def _check(data: object) -> None:
    """JSON can write half of a surrogate pair, which neither UTF-8 nor the catalog can hold, and
    values so deep that they cannot be written again. ValueError.
    """
    waiting = [(data, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, str) and not item.isascii():
            _check_text(item)
        elif isinstance(item, dict | list):
            if depth == DEEPEST:
                raise ValueError(f"nested deeper than {DEEPEST} levels")
            inner = [*item, *item.values()] if isinstance(item, dict) else item
            waiting += [(one, depth + 1) for one in inner]


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValueError("a lone surrogate (\\ud800 to \\udfff) is no text") from None


def wire_time(nanoseconds: int) -> str:
    """Microseconds are as fine as the clients' parsers go."""
    moment = _EPOCH + timedelta(microseconds=nanoseconds // 1000)
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def wire_seconds(seconds: float) -> str:
    return wire_time(int(seconds * 1_000_000) * 1000)
