"""A house in which templates are built."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from tests.control.houses import House

from aenv.control.builds.plans import Plan, Step, StepType
from aenv.control.builds.service import BuildRecord, BuildStatus, NewBuild
from aenv.models.sandboxes import Resources
from aenv.store import layers

SIZE = Resources(1, 512, 1024)
TEAM = "default"


def run(command: str, user: str = "", **options: Any) -> Step:
    return Step(StepType.RUN, (command, user) if user else (command,), **options)


def env(*words: str) -> Step:
    return Step(StepType.ENV, words)


def workdir(path: str) -> Step:
    return Step(StepType.WORKDIR, (path,))


def user(name: str) -> Step:
    return Step(StepType.USER, (name,))


def copy(source: str, target: str, content: bytes, *rest: str) -> Step:
    return Step(StepType.COPY, (source, target, *rest), hashlib.sha256(content).hexdigest())


async def once(content: bytes) -> AsyncIterator[bytes]:
    yield content


@dataclass
class Yard(House):
    async def request(self, name: str = "app", tags: tuple[str, ...] = ()) -> BuildRecord:
        _, build = await self.system.building.builds.request(TEAM, NewBuild(name, SIZE, tags))
        return build

    async def begin(self, *steps: Step, name: str = "app", **options: Any) -> BuildRecord:
        """Started, not awaited."""
        build = await self.request(name)
        plan = Plan(steps, **{"template": "base", **options})
        await self.system.building.builds.start(TEAM, build.template_id, build.id, plan)
        return build

    async def end(self, build: BuildRecord) -> BuildRecord:
        """The build once it is over."""
        async with asyncio.timeout(20):
            while True:
                _, now = await self.system.building.builds.get(TEAM, build.template_id, build.id)
                if now.status in (BuildStatus.READY, BuildStatus.ERROR):
                    return now
                await asyncio.sleep(0.005)

    async def build(self, *steps: Step, name: str = "app", **options: Any) -> BuildRecord:
        return await self.end(await self.begin(*steps, name=name, **options))

    async def upload(self, content: bytes) -> None:
        archives = self.system.building.archives
        ticket = archives.ticket(TEAM, hashlib.sha256(content).hexdigest())
        await archives.receive(ticket, len(content), once(content))

    async def said(self, build: BuildRecord) -> list[str]:
        return [entry.message for entry in await self.system.building.builds.log(build.id)]

    async def layer_keys(self) -> list[str]:
        return [one.layer.key for one in await self.system.catalog.read(layers.oldest)]

    async def settled(self) -> None:
        """Until what runs in the background has ended."""
        building, others = self.system.building.builds._tasks, self.system._background._tasks
        async with asyncio.timeout(10):
            while building or others:  # noqa: ASYNC110
                await asyncio.sleep(0.005)


def zipped(text: str) -> bytes:
    return gzip.compress(text.encode(), mtime=0)
