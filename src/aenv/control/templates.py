"""Templates: names and ids to what a node can start, waiting for one that is being built."""

from __future__ import annotations

import hashlib
import uuid
from dataclasses import dataclass

from aenv.control.deadlines import deadline
from aenv.control.keys import DEFAULT_TEAM
from aenv.models.errors import (
    InvalidRequestError,
    NotFoundError,
    TemplateBuildError,
    TemplateNotReadyError,
)
from aenv.models.ids import TEMPLATE_NAME
from aenv.models.references import ImageReference, is_explicit
from aenv.models.registries import RegistryLogin
from aenv.models.templates import TemplateInfo, TemplateProgress, TemplateStatus
from aenv.node.port import Node
from aenv.store import sandboxes as rows
from aenv.store.catalog import Catalog
from aenv.store.records import TemplateUse

BUILT_IN = ("base", "host")
DEFAULT_TAG = "default"
NODE_TIMEOUT = 30.0
NEVER = TemplateUse()


@dataclass(frozen=True, slots=True)
class Template:
    """``info`` is None while it is not built."""

    id: str
    name: str
    build_id: str
    status: TemplateStatus
    info: TemplateInfo | None = None
    uses: TemplateUse = NEVER


class Templates:
    def __init__(self, catalog: Catalog, node: Node, *, wait: float = 45.0) -> None:
        self._catalog = catalog
        self._node = node
        self._wait = wait

    async def all(self) -> list[Template]:
        """What can be started, and built-in ones on their way."""
        infos = {info.name: info for info in await self.infos()}
        uses = await self._catalog.read(rows.uses)
        found = [
            _template(name, info, TemplateStatus.READY, uses.get(name))
            for name, info in sorted(infos.items())
        ]
        for name in BUILT_IN:
            if name not in infos:
                progress = await self.progress(name)
                if progress.status in (TemplateStatus.BUILDING, TemplateStatus.ERROR):
                    found.append(_template(name, None, progress.status, uses.get(name)))
        return found

    async def get(self, reference: str) -> Template:
        """NotFoundError when nothing of that name or id is there or on its way."""
        name = self.name_of(reference, [info.name for info in await self.infos()])
        for template in await self.all():
            if template.name == name:
                return template
        raise _unknown(reference)

    async def exists(self, name: str) -> bool:
        """Whether ``name`` is that of a template, built or built in."""
        return name in BUILT_IN or name in [info.name for info in await self.infos()]

    async def require(self, reference: str) -> TemplateInfo:
        """The template to start. Starts or joins the build of a built-in one, or the pull of an
        image, and waits for it a while.

        NotFoundError, TemplateNotReadyError (with the progress), TemplateBuildError.
        """
        infos = {info.name: info for info in await self.infos()}
        name = self.name_of(reference, list(infos))
        if name in infos:
            return infos[name]
        progress = await self.ensure(name, wait=self._wait)
        if progress.status is not TemplateStatus.READY:
            raise _not_ready(progress)
        for info in await self.infos():
            if info.name == name:
                return info
        raise _unknown(reference)

    async def ensure(
        self, name: str, *, wait: float, anew: bool = False, login: RegistryLogin | None = None
    ) -> TemplateProgress:
        """Start or join a build, wait up to ``wait`` seconds, tell how far it is. NotFoundError."""
        _check_known(name)
        async with deadline(wait + NODE_TIMEOUT, f"building {name}"):
            return await self._node.ensure_template(name, wait=wait, anew=anew, login=login)

    async def pull(self, image: str, *, wait: float) -> TemplateProgress:
        """Ask its registry what an image's name means now, and fetch it. InvalidRequestError."""
        if image in BUILT_IN:
            raise InvalidRequestError(
                f"{image} is a template of ours; for an image of this name: {image}:latest"
            )
        return await self.ensure(ImageReference.parse(image).name, wait=wait, anew=True)

    async def progress(self, name: str) -> TemplateProgress:
        """NotFoundError."""
        _check_known(name)
        async with deadline(NODE_TIMEOUT, "asking the node for its templates"):
            return await self._node.template_progress(name)

    async def delete(self, reference: str) -> None:
        name = self.name_of(reference, [info.name for info in await self.infos()])
        async with deadline(NODE_TIMEOUT, "asking the node for its templates"):
            await self._node.delete_template(name)

    def name_of(self, reference: str, known: list[str]) -> str:
        """``name``, ``name:tag``, ``team/name[:tag]``, an image or an id → name. NotFoundError for
        another tag of a built-in one, and for what can be neither.
        """
        for name in (*known, *BUILT_IN):
            if reference in (name, template_id(name)):
                return name
        team, slash, rest = reference.rpartition("/")
        name, colon, tag = rest.partition(":")
        ours = (not slash or team == DEFAULT_TEAM) and TEMPLATE_NAME.match(name) is not None
        if ours and colon and tag == DEFAULT_TAG:
            return name
        if ours and (slash or (colon and name in BUILT_IN)):
            if colon:
                raise _unknown(reference)
            return name
        image = _image_name(reference)
        return name if ours and not colon and image not in known else image

    async def infos(self) -> list[TemplateInfo]:
        """What the node can start now."""
        async with deadline(NODE_TIMEOUT, "asking the node for its templates"):
            return await self._node.templates()


def _check_known(name: str) -> None:
    """A plain name is a template's, never fetched as an image: it may be a misspelt one."""
    if name not in BUILT_IN and not is_explicit(name):
        raise _unknown(name)


def _image_name(reference: str) -> str:
    try:
        return ImageReference.parse(reference).name
    except InvalidRequestError as error:
        raise _unknown(reference) from error


def template_id(name: str) -> str:
    """A template's id: fixed for its name, shaped like E2B's."""
    number = int.from_bytes(hashlib.sha256(f"template:{name}".encode()).digest(), "big")
    digits = "abcdefghijklmnopqrstuvwxyz0123456789"
    text = ""
    for _ in range(19):
        number, rest = divmod(number, len(digits))
        text += digits[rest]
    return "t" + text


def _template(
    name: str, info: TemplateInfo | None, status: TemplateStatus, uses: TemplateUse | None
) -> Template:
    build = str(uuid.uuid5(uuid.NAMESPACE_OID, info.digest if info else f"unbuilt:{name}"))
    return Template(template_id(name), name, build, status, info, uses or NEVER)


def _not_ready(progress: TemplateProgress) -> TemplateNotReadyError | TemplateBuildError:
    if progress.status is TemplateStatus.ERROR:
        return TemplateBuildError(
            f"template {progress.name!r} could not be built: {progress.error or progress.step}; "
            f"the next create tries again, and so does: {_remedy(progress.name)}"
        )
    return TemplateNotReadyError(
        f"template {progress.name!r} is being built: {progress.fraction:.0%}"
        f"{' (' + progress.step + ')' if progress.step else ''}; ask again",
        retry_after=5,
    )


def _remedy(name: str) -> str:
    return f"aenv template build {name}" if name in BUILT_IN else f"aenv pull {name}"


def _unknown(reference: str) -> NotFoundError:
    return NotFoundError(
        f"there is no template {reference[:255]!r}; 'aenv template list' shows what there is, "
        "an image is named with its tag, as in python:3.12"
    )
