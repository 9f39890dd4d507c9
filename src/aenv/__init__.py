"""aenv: the place where AI agents act and learn.

``from aenv import Sandbox`` is all most programs need. Everything is imported on first use, so that
``import aenv`` costs milliseconds.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from aenv._version import __version__

if TYPE_CHECKING:
    from aenv.guest import Restore, on_restore
    from aenv.models.errors import AenvError
    from aenv.sdk import (
        AsyncSandbox,
        AsyncSnapshot,
        AsyncTemplate,
        AsyncVolume,
        CommandResult,
        Sandbox,
        Snapshot,
        Template,
        Volume,
    )

_EXPORTS = {
    "AenvError": "aenv.models.errors",
    "AsyncSandbox": "aenv.sdk",
    "AsyncSnapshot": "aenv.sdk",
    "AsyncTemplate": "aenv.sdk",
    "AsyncVolume": "aenv.sdk",
    "CommandResult": "aenv.sdk",
    "Restore": "aenv.guest",
    "Sandbox": "aenv.sdk",
    "Snapshot": "aenv.sdk",
    "Template": "aenv.sdk",
    "Volume": "aenv.sdk",
    "on_restore": "aenv.guest",
}

__all__ = [
    "AenvError",
    "AsyncSandbox",
    "AsyncSnapshot",
    "AsyncTemplate",
    "AsyncVolume",
    "CommandResult",
    "Restore",
    "Sandbox",
    "Snapshot",
    "Template",
    "Volume",
    "__version__",
    "on_restore",
]


def __getattr__(name: str) -> Any:
    try:
        module = _EXPORTS[name]
    except KeyError:
        raise AttributeError(f"module 'aenv' has no attribute {name!r}") from None
    return getattr(import_module(module), name)


def __dir__() -> list[str]:
    return sorted(__all__)


def _warn_of_namesake() -> None:
    """The distribution ``aenvironment`` owns a package ``aenv`` too: each overwrites the other's
    files. Looked for by name in the import path, as importlib.metadata takes 0.06 s to load.
    """
    import os
    import sys

    for folder in sys.path:
        if os.path.basename(folder) not in ("site-packages", "dist-packages"):
            continue
        try:
            names = os.listdir(folder)
        except OSError:
            continue
        if any(n.startswith("aenvironment-") and n.endswith(".dist-info") for n in names):
            import warnings

            warnings.warn(
                f"the distribution `aenvironment` in {folder} owns a package `aenv` too; "
                "uninstall it and reinstall aenv-platform: pip uninstall aenvironment",
                stacklevel=3,
            )
            return


_warn_of_namesake()
