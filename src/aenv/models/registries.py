"""A login to one registry, for one pull."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class RegistryLogin:
    """Never stored, never logged."""

    user: str = field(repr=False)
    password: str = field(repr=False)
