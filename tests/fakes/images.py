"""An image store that only remembers: templates that are there, being built, or broken."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from aenv.models.errors import NotFoundError, TemplateNotReadyError
from aenv.models.registries import RegistryLogin
from aenv.models.templates import TemplateInfo, TemplateProgress, TemplateStatus
from aenv.node.engine import Rootfs

BASE = TemplateInfo("base", digest="abc", size_bytes=1, built_at=1.0, env={"LANG": "C.UTF-8"})

ROOTFS = Rootfs(lowers=(Path("/nowhere"),))


@dataclass(frozen=True)
class FakeImage:
    info: TemplateInfo
    rootfs: Rootfs = ROOTFS


@dataclass
class FakeImages:
    ready: dict[str, TemplateInfo] = field(default_factory=lambda: {"base": BASE})
    unready: dict[str, TemplateProgress] = field(default_factory=dict)
    ensured: list[str] = field(default_factory=list)
    pins: dict[str, list[Path]] = field(default_factory=dict)

    async def start(self) -> None: ...

    async def close(self) -> None: ...

    async def open(self, name: str) -> FakeImage:
        progress = await self.progress(name)
        if progress.status is not TemplateStatus.READY:
            raise TemplateNotReadyError(f"template {name} {progress.fraction:.0%}, {progress.step}")
        return FakeImage(self.ready[name])

    async def open_exact(self, name: str, digest: str) -> FakeImage | None:
        info = self.ready.get(name)
        return FakeImage(info) if info and info.digest == digest else None

    async def pin(self, name: str, digest: str, holder: Path) -> None:
        self.pins.setdefault(digest, []).append(holder)

    def unpin(self, holder: Path) -> None:
        for holders in self.pins.values():
            holders[:] = [one for one in holders if one != holder]

    async def ensure(
        self,
        name: str,
        wait: float = 0,
        *,
        anew: bool = False,
        login: RegistryLogin | None = None,
    ) -> TemplateProgress:
        self.ensured.append(name)
        return await self.progress(name)

    async def progress(self, name: str) -> TemplateProgress:
        if name in self.ready:
            return TemplateProgress(name, TemplateStatus.READY, 1.0)
        if name in self.unready:
            return self.unready[name]
        raise NotFoundError(f"no template {name!r}")

    async def list(self) -> list[TemplateInfo]:
        return [*self.ready.values()]

    async def delete(self, name: str) -> None:
        if self.ready.pop(name, None) is None:
            raise NotFoundError(f"no template {name!r}")
