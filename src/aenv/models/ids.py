"""Identifiers. All are lower-case alphanumeric and of fixed length per kind.

Sandbox ids must match ``[a-z0-9]+`` (the host form ``{port}-{id}.domain`` splits on the first dash)
and must have one length (runsc matches container ids by prefix).
"""

from __future__ import annotations

import hashlib
import re
import secrets
from pathlib import Path

_ALPHABET = "abcdefghijklmnopqrstuvwxyz0123456789"
SANDBOX_ID_LENGTH = 20
SANDBOX_ID = re.compile(rf"[a-z0-9]{{{SANDBOX_ID_LENGTH}}}\Z")
TEMPLATE_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,127}\Z")


def _random(length: int) -> str:
    return "".join(secrets.choice(_ALPHABET) for _ in range(length))


def new_sandbox_id() -> str:
    return "i" + _random(SANDBOX_ID_LENGTH - 1)


def new_object_id(prefix: str) -> str:
    """An id of another noun; ``prefix`` is its letter."""
    return prefix + _random(SANDBOX_ID_LENGTH - len(prefix))


def new_snapshot_id() -> str:
    """A node's name for a stored snapshot."""
    return "s" + _random(SANDBOX_ID_LENGTH - 1)


def is_sandbox_id(value: str) -> bool:
    return SANDBOX_ID.match(value) is not None


def new_token() -> str:
    """An unguessable bearer token (256 bits, url-safe)."""
    return secrets.token_urlsafe(32)


def new_api_key() -> str:
    return "e2b_" + secrets.token_hex(20)


def instance_id(data_dir: Path) -> str:
    """Eight hex digits that name one server instance: the hash of its data folder's real path."""
    return hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:8]
