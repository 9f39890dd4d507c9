"""The real server over the fake node, as a process: ``python -m tests.fakes.server DATA_DIR``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.fakes.node import FakeNode

from aenv.control.system import System
from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.server.serve import serve
from aenv.store.settings import load_settings


async def _open(settings: Settings) -> System:
    return await System.open(settings, FakeNode())


def main() -> int:
    started = time.perf_counter()
    root = Path(sys.argv[1])
    options = json.loads(sys.argv[2]) if len(sys.argv) > 2 else {}
    folders = Folders(root / "data", root / "cache", root / "config", root / "run")
    settings = load_settings(folders, {"port": 0, **options}, {})

    def ready(url: str) -> None:
        print(json.dumps({"url": url, "seconds": time.perf_counter() - started}), flush=True)

    return serve(settings, ready=ready, opener=_open)


if __name__ == "__main__":
    sys.exit(main())
