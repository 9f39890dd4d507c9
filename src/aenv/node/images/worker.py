"""The process in which one image is built: ``python -m aenv.node.images NAME``.

It is the first process of a PID and mount namespace of its own, so whatever it starts or mounts
ends with it; and it ends when its standard input is closed, that is with the process that started
it.
"""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from aenv.models.errors import AenvError
from aenv.models.folders import Folders
from aenv.node.images.builtin import recipe
from aenv.node.images.progress import BuildState
from aenv.node.images.recipes import Recipe
from aenv.node.images.records import Shelf

DONE, FAILED, BUSY = 0, 1, 75
_KEEP = 2
"""Images per template: this recipe's and the one before, which a server not yet updated may use."""


def main() -> int:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folders = Folders.resolve()
    return build(recipe(sys.argv[1], folders), Shelf(folders.cache / "images"))


def build(wanted: Recipe, shelf: Shelf) -> int:
    """Build unless it is there or somebody builds it. The exit code says which."""
    state = BuildState(shelf.root, wanted.name)
    with state.hold() as mine:
        if not mine:
            return BUSY
        if shelf.find(wanted):
            return DONE
        state.report(0.0, "preparing")
        shelf.clear_workspaces(wanted.name)
        try:
            build_into(wanted, shelf, state)
        except (AenvError, OSError) as error:
            state.fail(str(error))
            return FAILED
        if wanted.host_wide:
            shelf.prune(wanted.name, keep=_KEEP)
        state.clear()
        return DONE


def build_into(wanted: Recipe, shelf: Shelf, state: BuildState) -> None:
    digest = wanted.digest()
    with shelf.workspace(wanted.name) as workspace:
        built = wanted.build(workspace, state.report)
        shelf.seal(wanted, digest, workspace, built)


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(FAILED)


def command(name: str) -> list[str]:
    """How to start the worker in namespaces of its own."""
    isolate = [
        "unshare",
        "--mount",
        "--propagation=private",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]
    return [*isolate, sys.executable, "-m", "aenv.node.images", name]


def environment(folders: Folders) -> dict[str, str]:
    """Ours, with the same folders, and this very copy of the package."""
    source = str(Path(__file__).parents[3])
    inherited = os.environ.get("PYTHONPATH")
    path = os.environ.get("PATH", os.defpath)
    return {
        **os.environ,
        "PATH": f"{path}:/usr/local/sbin:/usr/sbin:/sbin",
        "PYTHONPATH": f"{source}:{inherited}" if inherited else source,
        "AENV_CACHE_DIR": str(folders.cache),
        "AENV_DATA_DIR": str(folders.data),
        "AENV_RUN_DIR": str(folders.run),
    }
