"""What of the CPU a memory image depends on."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def cpu_features() -> str:
    """A short digest of the CPU's feature flags; empty where the host does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    flags = next((line for line in lines if line.lower().startswith(("flags", "features"))), "")
    return hashlib.sha256(" ".join(sorted(flags.split())).encode()).hexdigest()[:16]
