"""Ending the sandboxes of a server that is gone: its node is opened once more, without serving
anything, and closed for good.
"""

from __future__ import annotations

from aenv.control.instances import DataLock
from aenv.control.system import CATALOG, System, open_local
from aenv.models.settings import Settings


async def clear(settings: Settings) -> tuple[int, list[str]]:
    """End every sandbox of the data folder and remove what its instance has on this host; how many
    there were, and the ids that could not be ended.

    ConflictError when a server holds the folder, HostSetupError when the node cannot be opened.
    """
    if not (settings.folders.data / CATALOG).exists():
        return 0, []
    lock = DataLock.acquire(settings.folders.data)
    try:
        system: System = await open_local(settings)
        try:
            return await system.shut_down(kill=True)
        finally:
            await system.close()
    finally:
        lock.release()
