"""A memory image as a folder: runsc's files, and what of the host a restore needs beside them.

The guest's agent is mapped into its memory from a file of ours, so an image keeps (by hard link)
the very files its machine saw at ``/.aenv``: a server with a newer agent can restore it.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

from aenv.models.errors import DiskFullError, EngineError, ImageUnusableError
from aenv.node.engines.gvisor.bundle import Bundle
from aenv.node.engines.gvisor.commands import Runsc
from aenv.node.engines.gvisor.control import (
    IMAGE_FILES,
    ControlSocket,
    ControlUnreachableError,
)
from aenv.node.engines.tasks import finish

_VERSION = 1
_FACTS = "image.json"
_GUEST = "guest"


@dataclass(frozen=True, slots=True)
class ImageFacts:
    """``guest``: the name of the folder that was seen at ``/.aenv``. ``shared_memory_mb``: the size
    of ``/dev/shm``, 0 in images of machines that had none: a restore must mount the same.
    """

    boot_id: str
    guest: str
    shared_memory_mb: int = 0


async def write(control: ControlSocket, runsc: Runsc, bundle: Bundle, folder: Path) -> None:
    """Have runsc write its files into ``folder``, which has none of them."""
    try:
        await finish(control.checkpoint(folder))
    except ControlUnreachableError:
        await asyncio.to_thread(_remove_image, folder)
        await runsc.checkpoint(bundle, folder)
    except EngineError as error:
        if "no space left" in error.message.lower():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def add_facts(bundle: Bundle, folder: Path) -> None:
    """Put beside runsc's files what else a restore needs."""
    guest = bundle.read_guest_folder()
    _link_all(guest, folder / _GUEST)
    facts = {
        "version": _VERSION,
        "boot_id": bundle.boot_id.read_text(),
        "guest": guest.name,
        "shared_memory_mb": bundle.read_shared_memory_mb(),
    }
    (folder / _FACTS).write_text(json.dumps(facts))


def read_facts(folder: Path) -> ImageFacts:
    """Raises ImageUnusableError."""
    try:
        found = json.loads((folder / _FACTS).read_text())
        if found["version"] != _VERSION:
            raise ImageUnusableError(f"the memory image is of version {found['version']}")
        return ImageFacts(
            str(found["boot_id"]), str(found["guest"]), int(found.get("shared_memory_mb", 0))
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ImageUnusableError(f"the memory image at {folder} is damaged: {error!r}") from error


def restored_guest_folder(store: Path, folder: Path, facts: ImageFacts) -> Path:
    """The guest's folder in ``store``, put back from the image if it is gone."""
    target, kept = store / facts.guest, folder / _GUEST
    if target.exists():
        return target
    if not (kept / "agent").is_file():
        raise ImageUnusableError(f"the memory image at {folder} lacks the guest's agent")
    store.mkdir(mode=0o755, parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".new-", dir=store))
    try:
        partial.rmdir()
        _link_all(kept, partial)
        partial.rename(target)
    except OSError:
        if not target.exists():  # else another restore was first
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def write_failure(error: OSError, destination: Path) -> EngineError | DiskFullError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFullError(f"no room for the memory image at {destination}; free disk space")
    return EngineError(f"cannot write the memory image {destination}: {error}")


def _remove_image(folder: Path) -> None:
    for name in IMAGE_FILES:
        (folder / name).unlink(missing_ok=True)


def _link_all(source: Path, target: Path) -> None:
    shutil.copytree(source, target, copy_function=_link)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another file system
        shutil.copy2(source, target)
