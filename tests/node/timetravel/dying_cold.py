"""A server that dies while a snapshot goes to the blob store or comes back: ``python -m … ROOT
AGENT PLAN``. It writes ``ROOT/copy.json`` once one is in the store, and exits with 42 where the
point was never reached.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.node.timetravel.dying import NOT_REACHED, Plan, die
from tests.node.timetravel.travel import Host, make_node, settings_in

from aenv.models.settings import BlobSettings, Settings
from aenv.node import faults
from aenv.store.blobs.store import BlobStore
from aenv.store.catalog import Catalog


async def open_blobs(root: Path) -> tuple[BlobStore, Catalog]:
    shared = root / "shared"
    shared.mkdir(exist_ok=True)
    settings = Settings(settings_in(root).folders, store=BlobSettings(folder=str(shared)))
    catalog = await Catalog.open(root / "catalog.sqlite")
    return await BlobStore.open(settings, catalog), catalog


async def main(root: Path, agent: Path, plan: Plan) -> None:
    settings = settings_in(root)
    host = Host(settings, agent, make_node(settings, agent))
    await host.node.start(())
    blobs, _ = await open_blobs(root)
    guest = await host.create(sandbox_id=plan.sandbox_id)
    await guest.start_counter()
    await guest.sh("head -c 2000000 /dev/urandom > /root/file; sync")
    await host.node.pause(plan.sandbox_id, plan.snapshot_id)
    await host.node.demote(plan.sandbox_id)
    if plan.operation == "fetch":
        kept = await host.node.store_snapshot(plan.snapshot_id, blobs)
        (root / "copy.json").write_text(json.dumps(kept.copy.to_json()))
        await host.node.evict_snapshot(plan.snapshot_id)
    with faults.armed(plan.point, die):
        if plan.operation == "fetch":
            await host.node.fetch_snapshot(kept.copy, blobs)
        else:
            await host.node.store_snapshot(plan.snapshot_id, blobs)
    os._exit(NOT_REACHED)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), Path(sys.argv[2]), Plan(**json.loads(sys.argv[3]))))
