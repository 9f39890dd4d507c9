"""The recipes a node knows: its own, by their names, and every image a registry has."""

from __future__ import annotations

from aenv.models.errors import ConflictError, InvalidRequestError, NotFoundError
from aenv.models.folders import Folders
from aenv.models.references import ImageReference
from aenv.node.images.base import BaseRecipe
from aenv.node.images.host import HostRecipe
from aenv.node.images.recipes import Recipe

NAMES = (BaseRecipe.name, HostRecipe.name)


def recipe(name: str, folders: Folders, source: str | None = None) -> Recipe:
    """``source``: a folder or archive of this host instead of a registry, as ``oci:PATH`` or
    ``docker-archive:PATH``. Raises NotFoundError, ConflictError for a name of ours.
    """
    if source is None and name == BaseRecipe.name:
        return BaseRecipe(folders.cache)
    if source is None and name == HostRecipe.name:
        return HostRecipe()
    try:
        reference = ImageReference.parse(name)
    except InvalidRequestError as error:
        raise NotFoundError(
            f"no template {name!r}; this node has {' and '.join(NAMES)}, and images: {error}"
        ) from error
    if source is not None and reference.name.partition(":")[0] in NAMES:
        raise ConflictError(f"{name!r} is a template of ours; choose another name for the image")
    return _image(reference, folders, source)


def _image(reference: ImageReference, folders: Folders, source: str | None) -> Recipe:
    """What only the process that builds it needs is imported there."""
    from aenv.node.images.oci.recipe import OciRecipe

    return OciRecipe(reference, folders, source)
