"""The pinned gVisor runtime: where its binary is, and which release it is."""

from __future__ import annotations

from pathlib import Path

__all__ = ["VERSION", "binary_path"]

VERSION = "20260701"
"""What ``runsc --version`` answers."""


def binary_path() -> Path:
    """The ``runsc`` of this distribution."""
    return Path(__file__).parent / "bin" / "runsc"
