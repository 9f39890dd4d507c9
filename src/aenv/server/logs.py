"""Structured logs: JSON lines for machines, coloured text on a terminal, request and sandbox ids
bound, secrets masked.

The standard library's loggers (uvicorn's, the node's) go through the same pipe.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import MutableMapping
from typing import Any

import structlog

SECRET_NAME = re.compile(
    r"token|secret|password|passwd|authorization|cookie|api_?key|env_?vars|signature", re.IGNORECASE
)
SECRET_TEXT = re.compile(
    r"""e2b_[A-Za-z0-9]{16,}
      | (?i:(?:bearer|basic)\s+)[A-Za-z0-9+/=._~-]{8,}
      | (?i:(?:access_?token|secret|signature|api[_-]?key|password)["']?\s*[=:]\s*["']?)[^\s"'&,;]+
      | (?<=://)[^/\s:@]+:[^/\s@]+(?=@)
    """,
    re.VERBOSE,
)
MASK = "***"


def configure(*, level: int = logging.INFO, pretty: bool | None = None) -> None:
    """Send every log line to stderr; ``pretty`` None: when stderr is a terminal."""
    pretty = sys.stderr.isatty() if pretty is None else pretty
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(level),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                masked,
                structlog.dev.ConsoleRenderer()
                if pretty
                else structlog.processors.JSONRenderer(default=repr),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    for name in ("uvicorn", "alembic", "httpx", "httpcore"):
        logging.getLogger(name).setLevel(logging.WARNING)


def masked(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """The last net: code logs no secrets, and what slips through by name or shape is masked."""
    for name, value in event.items():
        event[name] = MASK if SECRET_NAME.search(name) else _without_secrets(value)
    return event


def _without_secrets(value: Any) -> Any:
    if isinstance(value, str):
        return SECRET_TEXT.sub(MASK, value)
    if isinstance(value, dict):
        return {
            name: MASK if SECRET_NAME.search(str(name)) else _without_secrets(inner)
            for name, inner in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_secrets(inner) for inner in value]
    return value
