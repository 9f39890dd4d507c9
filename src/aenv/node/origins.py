"""What a sandbox starts from: a template's image, or a stored snapshot with the image below it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from aenv.models.errors import AenvError, NotFoundError, TemplateBuildError, TemplateNotReadyError
from aenv.models.registries import RegistryLogin
from aenv.models.templates import GuestFacts, TemplateInfo, TemplateProgress
from aenv.node.bakes import BakeKey, Bakes, Use
from aenv.node.engine import DiskImage, Engine, Isolation, MemoryImage, Rootfs
from aenv.node.lowers import Lowers
from aenv.node.memos import Memo
from aenv.node.port import SandboxSpec
from aenv.node.snapshots.found import Known
from aenv.node.snapshots.store import SnapshotStore, Stored

BUILT_IN = ("base", "host")


class OpenImage(Protocol):
    """A template that is there and mounted."""

    @property
    def info(self) -> TemplateInfo: ...
    @property
    def rootfs(self) -> Rootfs: ...


class Images(Protocol):
    """The part of ``images.ImageStore`` a node uses."""

    async def start(self) -> None: ...
    async def close(self) -> None: ...
    async def open(self, name: str) -> OpenImage: ...
    async def open_exact(self, name: str, digest: str) -> OpenImage | None: ...
    async def pin(self, name: str, digest: str, holder: Path) -> None: ...
    def unpin(self, holder: Path) -> None: ...
    async def ensure(
        self,
        name: str,
        wait: float = 0,
        *,
        anew: bool = False,
        login: RegistryLogin | None = None,
    ) -> TemplateProgress: ...
    async def progress(self, name: str) -> TemplateProgress: ...
    async def list(self) -> list[TemplateInfo]: ...
    async def delete(self, name: str) -> None: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """``memory`` opens the memory image, and raises ImageUnusableError when it is damaged; None:
    boot. ``note`` says why not as asked. ``plain``: ``stored`` is a baked image of that origin.
    ``facts``: what ``info`` says of the guest is theirs. ``layers``: sealed ones within ``rootfs``.
    """

    info: TemplateInfo
    rootfs: Rootfs
    stored: Stored | None = None
    memory: Callable[[], MemoryImage] | None = None
    same_life: bool = False
    note: str | None = None
    plain: Origin | None = None
    facts: GuestFacts | None = None
    layers: tuple[str, ...] = ()

    @property
    def has_commands(self) -> bool:
        """Whether a boot takes longer than until the agent answers."""
        return bool(self.info.start_cmd or self.info.ready_cmd)

    @property
    def asked(self) -> Origin:
        """What the caller named."""
        return self.plain or self

    @property
    def fallback(self) -> Origin:
        """What to boot when the memory cannot be restored."""
        return self.plain or replace(self, memory=None)

    def baked(self, image: Stored | None) -> Origin:
        """Itself, or with the memory of ``image``."""
        if image is None:
            return self
        memory = lambda: image.manifest.memory_image(image.folder)  # noqa: E731
        return replace(self, stored=image, memory=memory, plain=replace(self, memory=None))

    @property
    def disk(self) -> DiskImage | None:
        if self.stored is None or not self.stored.manifest.own_disk:
            return None
        return DiskImage(self.stored.manifest.id, 0, 0)

    @property
    def log_seq(self) -> int:
        """Where the log of the guest's memory goes on: a fork's begins anew."""
        return self.stored.manifest.log_seq if self.stored and self.same_life else 0

    @property
    def image_bytes(self) -> int:
        """Of the memory it starts from."""
        return sum(self.stored.manifest.memory.values()) if self.stored and self.memory else 0

    def completed(self, spec: SandboxSpec) -> SandboxSpec:
        """With the variables that come along: a fork is not given the secret ones."""
        if self.asked.stored is None:
            return spec
        private = self.asked.stored.private
        inherited = private.env_of(same_life=self.same_life)
        secret = private.secret_env if self.same_life else frozenset()
        return replace(
            spec,
            env_vars={**inherited, **spec.env_vars},
            secret_env=spec.secret_env | secret,
        )

    def memo(self, spec: SandboxSpec) -> Memo:
        return Memo(
            self.info.name,
            self.info.digest,
            spec.resources,
            dict(spec.env_vars),
            tuple(sorted(spec.secret_env)),
            facts=self.facts,
            layers=self.layers,
            env_known=self.env_known or bool(spec.env_vars),
        )

    @property
    def env_known(self) -> bool:
        """Whether a boot can give it the variables it had."""
        return self.asked.stored is None or self.asked.stored.private.env_known

    def told(self, facts: GuestFacts | None) -> Origin:
        """With ``facts`` about the guest, if there are any."""
        return replace(self, info=facts.over(self.info), facts=facts) if facts else self


class Origins:
    def __init__(
        self, images: Images, lowers: Lowers, snapshots: SnapshotStore, bakes: Bakes
    ) -> None:
        self._images = images
        self._lowers = lowers
        self._snapshots = snapshots
        self._bakes = bakes

    @asynccontextmanager
    async def template(
        self, engine: Engine, spec: SandboxSpec, use: Use = Use.SHORTER
    ) -> AsyncIterator[Origin]:
        """Hold the template's memory image, if it has one that is to be used.

        Raises NotFoundError, TemplateNotReadyError (its build is joined), CapabilityError.
        """
        fresh = Origin(*await self._open(engine, spec.template)).told(spec.facts)
        key = BakeKey.of(spec, engine, fresh.info)
        async with self._bakes.using(key, use, commands=fresh.has_commands) as baked:
            yield fresh.baked(baked)

    @asynccontextmanager
    async def snapshot(self, snapshot_id: str, spec: SandboxSpec) -> AsyncIterator[Stored]:
        """Hold a snapshot; it is not deleted meanwhile. Raises NotFoundError, EngineError when it
        cannot be read, and ``spec`` does not tell enough of it either.
        """
        if spec.engine is not None:
            known = Known(spec.template, spec.resources, spec.engine)
            self._snapshots.salvage(snapshot_id, known)
        async with self._snapshots.using(snapshot_id) as stored:
            yield stored

    @asynccontextmanager
    async def of(
        self,
        stored: Stored,
        engine: Engine,
        spec: SandboxSpec,
        use: Use = Use.SHORTER,
        *,
        same_life: bool,
    ) -> AsyncIterator[Origin]:
        """The snapshot as asked for; without its memory if the image below it is not the same."""
        facts = stored.manifest
        told = spec.facts or facts.facts
        exact = await self._images.open_exact(facts.template, facts.template_digest)
        if exact is None:
            info, rootfs = await self._open(engine, facts.template)
            note = stored.damage or (
                f"the image of template {facts.template!r} below the snapshot is gone: its disk "
                "was started on the present one"
            )
            rootfs = await self._lowers.over(rootfs, facts.layers)
            origin = Origin(info, rootfs, stored, None, same_life, note, layers=facts.layers)
            yield origin.told(told)
            return
        from_memory = facts.has_memory and not spec.reboot
        memory = (lambda: facts.memory_image(stored.folder)) if from_memory else None
        damage = stored.damage
        rootfs = await self._lowers.over(exact.rootfs, facts.layers)
        origin = Origin(
            exact.info, rootfs, stored, memory, same_life, damage, layers=facts.layers
        ).told(told)
        key = BakeKey.of(spec, engine, origin.info)
        use = Use.NEVER if same_life or spec.reboot else use
        async with self._bakes.using(key, use, commands=True) as baked:
            yield origin.baked(baked)

    async def known(self, engine: Engine, name: str, digest: str | None) -> TemplateInfo:
        """What is known of a template for a sandbox that already runs."""
        try:
            exact = await self._images.open_exact(name, digest) if digest else None
            return exact.info if exact else (await self._open(engine, name))[0]
        except AenvError:
            return TemplateInfo(
                name, digest=digest or "", size_bytes=0, built_at=0, reproducible=False
            )

    async def pin(self, engine: Engine, memo: Memo, holder: Path) -> None:
        """Keep a sandbox's image for as long as ``holder`` exists."""
        if engine.capabilities.isolation is not Isolation.NONE:
            await self._lowers.pin(memo.template, memo.digest, memo.layers, holder)

    async def _open(self, engine: Engine, name: str) -> tuple[TemplateInfo, Rootfs]:
        if engine.capabilities.isolation is Isolation.NONE:
            return _host_files(name), Rootfs(lowers=())
        try:
            image = await self._images.open(name)
        except (TemplateNotReadyError, TemplateBuildError):
            await self._images.ensure(name)
            image = await self._images.open(name)
        return image.info, image.rootfs


def _host_files(name: str) -> TemplateInfo:
    """What an engine without isolation offers under a template's name: the host itself."""
    if name not in BUILT_IN:
        raise NotFoundError(
            f"template {name!r} is unknown to an engine without isolation; it runs on the host's "
            f"own files, as {' or '.join(BUILT_IN)}"
        )
    return TemplateInfo(name, digest="host", size_bytes=0, built_at=0, reproducible=False)
