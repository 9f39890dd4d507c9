"""What callers ask of sandboxes, and what of it this version refuses (rather than accept and
ignore).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aenv.control.volumes import MountRequest
from aenv.models.errors import InvalidRequestError, NotBuiltYetError
from aenv.models.sandboxes import NetworkPolicy

MAX_TIMEOUT = 365 * 24 * 3600
MAX_METADATA = 64 * 1024
MAX_VARIABLES = 512 * 1024
MAX_VARIABLE = 128 * 1024 - 1
"""The kernel's limit for one string of a new program."""


@dataclass(frozen=True, slots=True)
class CreateRequest:
    """A create, whichever route it came by. ``fingerprint`` names its body for idempotency keys."""

    template: str
    timeout: int
    fingerprint: str = ""
    idempotency_key: str | None = None
    metadata: Mapping[str, str] = field(default_factory=dict, repr=False)
    env_vars: Mapping[str, str] = field(default_factory=dict, repr=False)
    secret_env: tuple[str, ...] = ()
    network: NetworkPolicy = field(default_factory=NetworkPolicy)
    cpu: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    engine: str | None = None
    auto_pause: bool = False
    auto_pause_memory: bool = True
    auto_resume: bool = False
    volume_mounts: tuple[MountRequest, ...] = ()
    iam: Mapping[str, Any] | None = field(default=None, repr=False)


def check(request: CreateRequest) -> None:
    """InvalidRequestError or NotBuiltYetError naming the field."""
    check_timeout(request.timeout, "timeout")
    _check_lifecycle(request)
    if request.iam:
        raise NotBuiltYetError("iam: identity tokens are not built yet; leave the field out")
    _check_metadata(request.metadata)
    _check_variables(request.env_vars)
    for name in request.secret_env:
        if name not in request.env_vars:
            raise InvalidRequestError(f"secretEnvVars: {name[:64]!r} is not among envVars")


def check_timeout(seconds: int, field_name: str) -> None:
    if not 0 <= seconds <= MAX_TIMEOUT:
        raise InvalidRequestError(f"{field_name} must be 0 to {MAX_TIMEOUT} seconds, not {seconds}")


def _check_lifecycle(request: CreateRequest) -> None:
    if not request.auto_pause_memory and request.auto_resume:
        raise InvalidRequestError(
            "autoPauseMemory: false cannot be combined with autoResume: "
            "a filesystem-only snapshot is never resumed by traffic"
        )


def _check_metadata(metadata: Mapping[str, str]) -> None:
    if sum(len(key) + len(value) for key, value in metadata.items()) > MAX_METADATA:
        raise InvalidRequestError(f"metadata: more than {MAX_METADATA} characters")
    for key, value in metadata.items():
        if not key or len(key) > 1024 or "\0" in key or "\0" in value:
            raise InvalidRequestError(
                f"metadata: key {key[:64]!r} or its value is empty, too long or holds a NUL"
            )


def _check_variables(variables: Mapping[str, str]) -> None:
    total = 0
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name:
            raise InvalidRequestError(f"envVars: {name[:64]!r} is not a variable's name")
        size = len(name.encode()) + len(value.encode()) + 1
        total += size
        if size > MAX_VARIABLE or "\0" in value:
            raise InvalidRequestError(
                f"envVars: the value of {name[:64]!r} is longer than 128 KiB or holds a NUL"
            )
    if total > MAX_VARIABLES:
        raise InvalidRequestError(f"envVars: more than {MAX_VARIABLES} bytes in all")
