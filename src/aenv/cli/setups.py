"""What ``setup`` does, in order: the pinned runsc, the disk pool, the base template."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

from aenv.cli.builds import bar

if TYPE_CHECKING:
    from aenv.models.settings import Settings


async def prepare(*, base: bool) -> dict[str, str]:
    """What was made, and where. HostSetupError says what it needs; it can be run again."""
    from aenv.models.errors import HostSetupError
    from aenv.models.folders import Folders
    from aenv.sdk.local_servers import require_server_extra
    from aenv.store.settings import load_settings

    require_server_extra()
    if sys.platform != "linux" or os.geteuid() != 0:
        raise HostSetupError("aenv setup prepares gVisor and needs root on Linux; run it with sudo")
    settings = load_settings(Folders.resolve(), env=os.environ)
    done = {"runsc": await _runsc(settings), "disks": await _pool(settings)}
    if base:
        done["template base"] = await _base(settings)
    return done


async def _runsc(settings: Settings) -> str:
    from aenv.node import runsc

    with bar("installing runsc") as report:
        found = await runsc.install(settings.folders, report)
    return f"{found.path} ({found.version})"


async def _pool(settings: Settings) -> str:
    """A running server has made it already, and holds it."""
    from aenv.node.disks.pool import DiskPool
    from aenv.node.host import open_host
    from aenv.sdk import holders

    if holders.holder_of(settings.folders.data) is not None:
        return "held by the running server"
    pool = DiskPool(settings, open_host(settings))
    with bar("making the disk pool") as report:
        report(0.0, f"{settings.pool_mb} MiB")
        await pool.start()
    try:
        return f"{pool.kind} in {settings.folders.data}"
    finally:
        await pool.close()


async def _base(settings: Settings) -> str:
    from aenv.models.errors import TemplateBuildError
    from aenv.models.templates import TemplateStatus
    from aenv.node.images import ImageStore

    store = ImageStore(settings, None)
    with bar("building base") as report:
        while True:
            now = await store.ensure("base", wait=0.5)
            report(now.fraction, now.step)
            if now.status is not TemplateStatus.BUILDING:
                break
    if now.status is not TemplateStatus.READY:
        raise TemplateBuildError(
            f"the template base could not be built: {now.error or now.step}; "
            "the same command goes on where it stopped"
        )
    return f"ready in {settings.folders.cache}"
