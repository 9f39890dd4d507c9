"""The real server over the fake node, running as a process."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

REPOSITORY = Path(__file__).parents[2]


class Running:
    """A server process over the fake node, its URL and key."""

    def __init__(self, root: Path, files: tuple[int, int] | None = None, **options: Any) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.server", str(root), json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{REPOSITORY}"},
            preexec_fn=files and (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, files)),
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            _, errors = self.process.communicate(timeout=30)
            raise AssertionError(errors.decode())
        self.url = json.loads(line)["url"]
        stored = json.loads((root / "config" / "credentials.json").read_text())
        self.key = stored["profiles"]["default"]["api_key"]

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, headers={"X-API-Key": self.key}, timeout=20)

    def end(self, number: int | None = signal.SIGTERM) -> tuple[int, str]:
        """Exit status and what it wrote to stderr."""
        if number is not None:
            self.process.send_signal(number)
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors.decode()
