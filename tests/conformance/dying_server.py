"""A server that boots a machine and dies without a word: ``python -m … ENGINE ROOT AGENT ID
DELAY``.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import sys
from pathlib import Path

from tests.conformance.subjects import Subject


async def main(name: str, root: str, agent: str, sandbox_id: str, delay: str) -> None:
    subject = Subject.of(name, Path(root), Path(agent))
    await subject.engine.start()
    spec = dataclasses.replace(subject.spec(), sandbox_id=sandbox_id)
    boot = asyncio.create_task(subject.engine.boot(spec))
    await asyncio.wait({boot}, timeout=float(delay))
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
