"""The real guest agent, compiled from this checkout once per test run."""

from __future__ import annotations

import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

AGENT = Path(__file__).parents[2] / "agent"


@cache
def agent_binary() -> Path:
    """``AENV_TEST_AGENT``, else what ``go build`` makes of ``agent/``; its cache is quick."""
    if given := os.environ.get("AENV_TEST_AGENT"):
        return Path(given)
    target = Path(tempfile.gettempdir()) / f"aenv-test-agent-{os.getuid()}" / "agent"
    target.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = target.with_suffix(f".{os.getpid()}")
    subprocess.run(
        ["go", "build", "-o", str(fresh), "."],
        cwd=AGENT,
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    os.replace(fresh, target)
    return target
