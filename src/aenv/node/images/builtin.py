"""The recipes that every node has."""

from __future__ import annotations

from aenv.models.errors import NotFoundError
from aenv.models.folders import Folders
from aenv.node.images.base import BaseRecipe
from aenv.node.images.host import HostRecipe
from aenv.node.images.recipes import Recipe

NAMES = (BaseRecipe.name, HostRecipe.name)


def recipe(name: str, folders: Folders) -> Recipe:
    """Raises NotFoundError."""
    if name == BaseRecipe.name:
        return BaseRecipe(folders.cache)
    if name == HostRecipe.name:
        return HostRecipe()
    raise NotFoundError(f"no template {name!r}; this node has {' and '.join(NAMES)}")
