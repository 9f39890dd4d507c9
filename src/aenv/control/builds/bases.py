"""What a build starts from: a template of the node, an image, or a template that was built."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from aenv.control.builds import keys
from aenv.control.builds.contexts import Context
from aenv.control.builds.journals import Journal
from aenv.control.builds.library import Library
from aenv.control.builds.logins import Login, resolved
from aenv.control.builds.plans import Plan
from aenv.control.templates import BUILT_IN, Templates
from aenv.models.errors import NotFoundError, TemplateBuildError
from aenv.models.references import ImageReference, is_explicit
from aenv.models.sandboxes import DEFAULT_USER
from aenv.models.templates import GuestFacts, ImageFacts, TemplateInfo, TemplateStatus

PULL_TIMEOUT = 3600.0
POLL = 2.0
E2B_BASE = "e2bdev/base"
"""The image that E2B's clients start from where nobody names one: ours is ``base``."""


@dataclass(frozen=True, slots=True)
class Base:
    """``template``: the node's; ``snapshot``: what is above it. ``bare``: it needs a user first.
    ``start``: its own start and ready commands, which run again where a build names none.
    """

    template: str
    key: str
    context: Context
    snapshot: str | None = None
    bare: bool = False
    start: GuestFacts | None = None
    image: ImageFacts | None = None


class Bases:
    def __init__(self, templates: Templates, library: Library) -> None:
        self._templates = templates
        self._library = library

    async def find(self, team: str, plan: Plan, journal: Journal) -> Base:
        """NotFoundError, TemplateBuildError, InvalidRequestError. Fetches an image that lacks."""
        if plan.docker is not None:
            return await self.of_docker(team, plan.docker.origin, journal)
        if plan.image is not None and _is_e2b_base(plan.image):
            return await self._of_node(team, "base", journal)
        if plan.image is not None:
            name = ImageReference.parse(plan.image).name
            return await self._of_node(team, name, journal, plan.login)
        assert plan.template is not None
        built = await self._library.find(team, plan.template)
        if built is None:
            return await self._of_node(team, plan.template, journal)
        build, snapshot = built
        facts = build.facts or GuestFacts()
        return Base(
            snapshot.base,
            keys.root(team, "snapshot", snapshot.id),
            Context(facts.user, facts.workdir, facts.env),
            snapshot=snapshot.id,
            start=facts if facts.start_cmd or facts.ready_cmd else None,
            image=build.image,
        )

    async def of_docker(self, team: str, origin: str, journal: Journal) -> Base:
        """As a Dockerfile's FROM means it: a template of that name, else an image; it begins as the
        image's user, else as root.
        """
        plain = not is_explicit(origin)
        built = await self._library.get(team, origin) if plain else None
        if built is not None or (plain and origin in BUILT_IN):
            base = await self.find(team, Plan(template=origin), journal)
        else:
            base = await self.find(team, Plan(image=origin), journal)
        if base.snapshot is not None:
            return base
        said = base.image or ImageFacts()
        context = Context(said.user or "root", said.workdir or "/", base.context.env)
        return replace(base, context=context)

    async def _of_node(
        self, team: str, reference: str, journal: Journal, login: Login | None = None
    ) -> Base:
        info = await self._brought_about(reference, journal, login)
        facts = info.image
        if facts is None:  # one of ours: the user is there
            context = Context(info.default_user, "", info.env)
            return Base(info.name, keys.root(team, info.name, info.digest), context)
        return Base(
            info.name,
            keys.root(team, info.name, info.digest),
            Context(DEFAULT_USER, facts.workdir, info.env),
            bare=True,
            image=facts,
        )

    async def _brought_about(
        self, reference: str, journal: Journal, login: Login | None
    ) -> TemplateInfo:
        """Start or join its build or pull, to the end. With a login it is asked for anew, so that
        nobody starts from an image whose registry would refuse him.
        """
        known = [info.name for info in await self._templates.infos()]
        name = self._templates.name_of(reference, known)
        own = await resolved(login) if login is not None else None
        asks, waits = own is not None, own is not None or name not in known
        deadline, said = time.monotonic() + PULL_TIMEOUT, ""
        while waits:
            progress = await self._templates.ensure(name, wait=POLL, anew=asks, login=own)
            asks = False
            if progress.status is TemplateStatus.ERROR:
                raise TemplateBuildError(
                    f"{name} could not be brought about: {progress.error or progress.step}"
                )
            if progress.step != said:
                said = progress.step
                journal.say(f"[base] {name}: {progress.fraction:.0%} {said}", step="base")
            if time.monotonic() > deadline:
                raise TemplateBuildError(f"{name} was not there within {PULL_TIMEOUT:g} s")
            waits = progress.status is not TemplateStatus.READY
        for info in await self._templates.infos():
            if info.name == name:
                return info
        raise NotFoundError(f"{name} is gone already")


def _is_e2b_base(image: str) -> bool:
    try:
        name = ImageReference.parse(image).name
    except Exception:  # noqa: BLE001 - said where the image is looked for
        return False
    return name.partition("@")[0].partition(":")[0] == E2B_BASE
