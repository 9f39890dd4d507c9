"""The process in which one image is built: ``python -m aenv.node.images NAME [SOURCE] [--anew]``.

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
from aenv.models.references import ImageReference
from aenv.models.registries import RegistryLogin
from aenv.node.images.builtin import recipe
from aenv.node.images.progress import BuildState
from aenv.node.images.recipes import Recipe
from aenv.node.images.records import Shelf

DONE, FAILED, BUSY = 0, 1, 75
_ANEW = "--anew"


def main() -> int:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    folders = Folders.resolve()
    anew = _ANEW in sys.argv
    name, *source = [one for one in sys.argv[1:] if one != _ANEW]
    wanted = recipe(name, folders, *source)
    return build(wanted, Shelf(folders.cache / "images"), anew=anew)


def build(wanted: Recipe, shelf: Shelf, *, anew: bool = False) -> int:
    """Build unless it is there (then only ``anew``) or somebody builds it; the exit code says."""
    state = BuildState(shelf.root, wanted.name, wanted.key)
    with state.hold() as mine:
        if not mine:
            return BUSY
        if not anew and shelf.find(wanted):
            return DONE
        state.clear()
        state.report(0.0, "preparing")
        shelf.clear_workspaces(wanted.key)
        try:
            build_into(wanted, shelf, state)
        except (AenvError, OSError) as error:
            state.fail(str(error))
            return FAILED
        if wanted.host_wide:
            shelf.prune(wanted.name, keep=wanted.keep)
            shelf.sweep()
        state.clear()
        return DONE


def build_into(wanted: Recipe, shelf: Shelf, state: BuildState) -> None:
    digest = wanted.digest()
    with shelf.workspace(wanted.key) as workspace:
        built = wanted.build(workspace, state.report)
        record = shelf.seal(wanted, built.recipe or digest, workspace, built)
        wanted.arrange(record.recipe)


def _end_with_parent() -> None:
    while os.read(0, 4096):
        pass
    os._exit(FAILED)


def command(wanted: Recipe, *, anew: bool = False) -> list[str]:
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
    what = [wanted.name, *wanted.arguments, *([_ANEW] if anew else [])]
    return [*isolate, sys.executable, "-m", "aenv.node.images", *what]


def environment(
    folders: Folders, image: str = "", login: RegistryLogin | None = None
) -> dict[str, str]:
    """Ours, with the same folders, and this very copy of the package. ``login``: to the registry of
    ``image``.
    """
    extra = {}
    if login is not None:
        from aenv.node.images.oci import credentials

        extra = credentials.given(ImageReference.parse(image).registry, login)
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
        **extra,
    }
