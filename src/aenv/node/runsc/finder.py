"""Finding a runsc of the pinned version: the ``aenv-runsc`` wheel, the host-wide cache, PATH."""

from __future__ import annotations

import asyncio
import importlib
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from aenv.models.errors import HostSetupError
from aenv.models.folders import Folders
from aenv.node.runsc import pin

_VERSION_TIMEOUT = 20.0


@dataclass(frozen=True, slots=True)
class Runsc:
    """A usable binary; ``origin`` says where it came from: ``wheel``, ``cache`` or ``PATH``."""

    path: Path
    version: str
    origin: str


def cached_path(folders: Folders, version: str = pin.VERSION) -> Path:
    """Where the host-wide cache keeps a release; old ones stay while memory images need them."""
    return releases(folders) / version / "runsc"


def releases(folders: Folders) -> Path:
    """The folder that holds a folder per release."""
    return folders.cache / "runsc"


async def find(folders: Folders, env: Mapping[str, str] | None = None) -> Runsc:
    """The first runsc of the pinned version; HostSetupError names the others that were refused."""
    refused: list[str] = []
    for origin, path in _candidates(folders, os.environ if env is None else env):
        version = await version_of(path)
        if version == pin.VERSION:
            return Runsc(path, version, origin)
        refused.append(f"{path} ({origin}) is {version or 'not a runsc that starts'}")
    seen = f"; refused: {', '.join(refused)}" if refused else ""
    places = f"wheel {pin.WHEEL}, {cached_path(folders)}, PATH"
    raise HostSetupError(
        f"no runsc of version {pin.VERSION} ({places}){seen}. Run `aenv setup` to install it"
    )


async def version_of(path: Path) -> str | None:
    """What ``runsc --version`` calls itself; None if it does not start, hangs or is something
    else.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            str(path),
            "--version",
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
    except OSError:
        return None
    try:
        async with asyncio.timeout(_VERSION_TIMEOUT):
            output, _ = await process.communicate()
    except TimeoutError:
        return None
    finally:
        if process.returncode is None:
            process.kill()
    words = output.decode(errors="replace").split()
    return words[2] if words[:2] == ["runsc", "version"] and len(words) > 2 else None


def _candidates(folders: Folders, env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    wheel = wheel_path()
    if wheel is not None:
        yield "wheel", wheel
    cached = cached_path(folders)
    if cached.exists():
        yield "cache", cached
    on_path = shutil.which("runsc", path=env.get("PATH"))
    if on_path is not None:
        yield "PATH", Path(on_path)


def wheel_path() -> Path | None:
    """The binary inside the installed ``aenv-runsc`` wheel, if it is there."""
    try:
        module = importlib.import_module("aenv_runsc")
    except ImportError:
        return None
    path = Path(module.binary_path())
    return path if path.exists() else None
