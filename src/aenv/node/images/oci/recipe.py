"""The recipe of an image that exists: fetch and convert the layers this host lacks, name them."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path, PurePosixPath
from typing import ClassVar

from aenv.models.folders import Folders
from aenv.models.references import ImageReference
from aenv.models.templates import ImageFacts
from aenv.node.images.layers import LayerShelf
from aenv.node.images.oci import tops
from aenv.node.images.oci.archives import open_path
from aenv.node.images.oci.conversions import VERSION
from aenv.node.images.oci.fetches import Fetches, Group, group
from aenv.node.images.oci.hosts import open_registry
from aenv.node.images.oci.manifests import BadImageError, Config
from aenv.node.images.oci.names import Names, key_of
from aenv.node.images.oci.sources import Source, configuration, describe
from aenv.node.images.recipes import Built, Recipe, Reporter, fingerprint
from aenv.store.settings import load_settings

_ABSENT = "0" * 64
_MOST_ENV = 512 << 10


class OciRecipe(Recipe):
    """``path``: ``oci:PATH`` or ``docker-archive:PATH`` instead of the reference's registry."""

    moves: ClassVar[bool] = True
    keep: ClassVar[int] = 1

    def __init__(
        self, reference: ImageReference, folders: Folders, path: str | None = None
    ) -> None:
        self.name = reference.name
        self._reference = reference
        self._folders = folders
        self._path = path
        self._images = folders.cache / "images"
        self._names = Names(self._images)
        self._layers = LayerShelf(self._images)

    @property
    def key(self) -> str:
        return key_of(self.name)

    @property
    def arguments(self) -> tuple[str, ...]:
        return (self._path,) if self._path else ()

    def digest(self) -> str:
        return self._names.get(self.name) or _ABSENT

    def arrange(self, recipe_digest: str) -> None:
        self._names.set(self.name, recipe_digest)

    def forget(self) -> None:
        self._names.remove(self.name)

    def build(self, workspace: Path, report: Reporter) -> Built:
        return asyncio.run(self._build(workspace, report))

    async def _build(self, workspace: Path, report: Reporter) -> Built:
        report(0.0, "asking for the image")
        source = self._source()
        try:
            image = await describe(source)
            config = await configuration(source, image)
            groups = group(image.manifest.layers, config.rootfs.diff_ids)
            blobs = self._images / "blobs"
            await Fetches(source, self._layers, blobs, workspace, report).bring(groups)
        finally:
            await source.close()
        facts = facts_of(config)
        report(0.98, "putting the layers together")
        keys = await asyncio.to_thread(self._stack, groups, facts, workspace)
        return Built(
            layer=None,
            layers=tuple(keys),
            facts=facts,
            recipe=fingerprint("oci", VERSION, self.name, image.digest),
            digest=image.digest,
        )

    def _source(self) -> Source:
        if self._path is not None:
            return open_path(self._path)
        return open_registry(self._reference, load_settings(self._folders, env=os.environ).registry)

    def _stack(self, groups: list[Group], facts: ImageFacts, workspace: Path) -> list[str]:
        """Topmost first."""
        keys = [one.key for one in groups]
        top = tops.top(self._layers, keys, facts.env.get("PATH"), workspace)
        return list(reversed([*keys, top] if top else keys))


def facts_of(config: Config) -> ImageFacts:
    """Raises BadImageError."""
    own = config.execution
    env = config.env()
    if sum(len(name) + len(value) for name, value in env.items()) > _MOST_ENV:
        raise BadImageError("the image's variables take more than 512 KiB")
    workdir = str(PurePosixPath("/", own.WorkingDir or "/"))
    if "\0" in workdir or "\0" in (own.User or ""):
        raise BadImageError("the image's user or working directory holds a NUL")
    return ImageFacts(
        user=own.User or "root",
        workdir=workdir,
        env=env,
        entrypoint=tuple(own.Entrypoint or ()),
        cmd=tuple(own.Cmd or ()),
        ports=tuple(sorted(own.ExposedPorts or {})),
    )
