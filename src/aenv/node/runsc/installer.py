"""Installing the pinned runsc into the host-wide cache: from an operator's URL, else built with
Go.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from aenv.models.errors import HostSetupError
from aenv.models.folders import Folders
from aenv.node.runsc import pin
from aenv.node.runsc.building import build
from aenv.node.runsc.finder import Runsc, cached_path, find, version_of

Progress = Callable[[float, str], None]
"""Called with a fraction in 0..1 and what is being done."""

_LOCK_POLL = 0.2


async def install(
    folders: Folders, progress: Progress | None = None, env: Mapping[str, str] | None = None
) -> Runsc:
    """Find the pinned runsc or put it into the cache; several callers on one host install it once.

    ``AENV_RUNSC_URL`` with ``AENV_RUNSC_SHA256`` names an operator's copy; without it the release
    is built from its Go module. Nothing half-made is ever seen: a binary is moved in when whole.
    """
    env = os.environ if env is None else env
    report = progress or (lambda fraction, step: None)
    try:
        return await find(folders, env)
    except HostSetupError:
        pass
    target = cached_path(folders)
    async with _locked(target.parent, report):
        if target.exists() and await version_of(target) == pin.VERSION:
            return Runsc(target, pin.VERSION, "cache")
        workdir = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=".new-", dir=target.parent))
        try:
            binary = await _obtain(workdir, report, env)
            await _accept(binary, target)
        finally:
            await asyncio.to_thread(shutil.rmtree, workdir, ignore_errors=True)
    report(1.0, f"runsc {pin.VERSION} is in {target}")
    return Runsc(target, pin.VERSION, "cache")


async def keep(folders: Folders, found: Runsc) -> None:
    """Put a runsc from elsewhere into the cache too: memory images need it after the next update of
    its wheel or of PATH.
    """
    target = cached_path(folders, found.version)
    if target.exists():
        return
    async with _locked(target.parent, lambda fraction, step: None):
        workdir = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix=".new-", dir=target.parent))
        try:
            copy = workdir / "runsc"
            await asyncio.to_thread(_link_or_copy, found.path, copy)
            await asyncio.to_thread(_move_in, copy, target)
        finally:
            await asyncio.to_thread(shutil.rmtree, workdir, ignore_errors=True)


async def _obtain(workdir: Path, report: Progress, env: Mapping[str, str]) -> Path:
    url, digest = env.get("AENV_RUNSC_URL"), env.get("AENV_RUNSC_SHA256")
    if not url:
        return await build(workdir, report, env)
    if not digest:
        raise HostSetupError(
            "AENV_RUNSC_URL needs AENV_RUNSC_SHA256 beside it; set both or neither"
        )
    from aenv.node.runsc.download import download  # httpx, which a server's start does not need

    return await download(url, digest, workdir / "runsc", report)


async def _accept(binary: Path, target: Path) -> None:
    await asyncio.to_thread(binary.chmod, 0o755)
    version = await version_of(binary)
    if version != pin.VERSION:
        found = version or "not a runsc that starts on this host"
        raise HostSetupError(
            f"the new runsc is {found}, but {pin.VERSION} is needed; not installed"
        )
    await asyncio.to_thread(_move_in, binary, target)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        target.chmod(0o755)


def _move_in(binary: Path, target: Path) -> None:
    with binary.open("rb") as file:
        os.fsync(file.fileno())
    binary.replace(target)


@asynccontextmanager
async def _locked(folder: Path, report: Progress) -> AsyncIterator[None]:
    """Hold the installer's lock; polled, so that a waiter can be cancelled."""
    await asyncio.to_thread(folder.mkdir, mode=0o755, parents=True, exist_ok=True)
    handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                report(0.0, "waiting for another installation of runsc")
                await asyncio.sleep(_LOCK_POLL)
        yield
    finally:
        os.close(handle)
