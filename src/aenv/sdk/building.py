"""Building templates on a server: of a Dockerfile, or of an image as it is."""

from __future__ import annotations

import asyncio
import hashlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO
from urllib.parse import quote, urlsplit

from aenv.models.errors import AenvError, InvalidRequestError, TemplateBuildError
from aenv.sdk._httpx import httpx
from aenv.sdk.client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from aenv.dockerfile.contexts import Context
    from aenv.dockerfile.stages import BuildStep, Files, Recipe

_POLL = 0.3
_CHUNK = 1 << 20
_UPLOAD = httpx.Timeout(60, connect=5)
_MOST_DOWNLOAD = 1 << 30


@dataclass(frozen=True, slots=True)
class BuildLog:
    """One line. ``step``: "base", a number, a stage's number and a number, or "finalize"."""

    message: str
    level: str = "info"
    step: str | None = None


@dataclass(frozen=True, slots=True)
class BuiltTemplate:
    """A template, and the build of it that is ready now."""

    id: str
    name: str
    build_id: str
    tags: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BuildOptions:
    """``start_cmd`` "image": what the image's ENTRYPOINT and CMD say. ``host_registries``: steps
    reach package registries as the server's host does.
    """

    name: str
    tags: tuple[str, ...] = ()
    cpu: float | None = None
    memory_mb: int | None = None
    start_cmd: str | None = None
    ready_cmd: str | None = None
    no_cache: bool = False
    host_registries: bool = True


@dataclass(slots=True)
class DockerfileBuild:
    """A Dockerfile with its context, read and found good."""

    recipe: Recipe
    context: Context
    hashes: dict[int, str] = field(default_factory=dict)

    @classmethod
    def read(
        cls,
        context: Path,
        dockerfile: Path | None = None,
        arguments: Mapping[str, str] | None = None,
        target: str | None = None,
    ) -> DockerfileBuild:
        """InvalidRequestError, with file and line for what is wrong in the Dockerfile."""
        from aenv.dockerfile.compiling import compiled
        from aenv.dockerfile.contexts import Context
        from aenv.dockerfile.ignoring import Ignored
        from aenv.dockerfile.reading import read

        if not context.is_dir():
            raise InvalidRequestError(f"{context} is no folder")
        path = dockerfile or context / "Dockerfile"
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeError) as error:
            raise InvalidRequestError(f"{path} cannot be read: {error}") from error
        recipe = compiled(read(text, str(path)), arguments, target)
        return cls(recipe, Context(context, Ignored.of(context, path)))

    def lines(self) -> Iterator[tuple[str, int]]:
        """Each step as the server names it, and where it stands."""
        *before, last = self.recipe.stages
        for number, stage in enumerate(before):
            yield f"{number}/0", stage.line
            for index, step in enumerate(stage.steps, 1):
                yield f"{number}/{index}", step.line
        yield "base", last.line
        for index, step in enumerate(last.steps, 1):
            yield str(index), step.line

    def body(self) -> dict[str, Any]:
        *before, last = self.recipe.stages
        stages = [
            {"name": s.name, "origin": s.origin, "steps": [self._step(one) for one in s.steps]}
            for s in before
        ]
        docker = {
            "origin": last.origin,
            "stages": stages,
            "entrypoint": list(last.entrypoint),
            "cmd": list(last.cmd),
            "ports": last.ports,
        }
        return {"docker": docker, "steps": [self._step(one) for one in last.steps]}

    def _step(self, one: BuildStep) -> dict[str, Any]:
        docker = {
            "argv": list(one.argv),
            "variables": dict(one.variables),
            "caches": list(one.caches),
            "stage": one.stage,
            "escape": self.recipe.escape,
        }
        found: dict[str, Any] = {"type": one.type, "args": list(one.args), "docker": docker}
        if one.files is not None:
            found["filesHash"] = self.hashes[id(one)]
        return found


Say = Callable[[BuildLog], Awaitable[None] | None]


async def build_dockerfile(
    client: Client, work: DockerfileBuild, options: BuildOptions, say: Say
) -> BuiltTemplate:
    """Send what is needed, build, and follow to the end. TemplateBuildError names file and line.

    Cancelled, it ends the build on the server.
    """
    asked = await _request(client, options)
    async with _Cancelling(client, asked):
        for note in work.recipe.notes:
            await _tell(say, BuildLog(note, "warn"))
        for stage in work.recipe.stages:
            for step in stage.steps:
                if step.files is not None:
                    work.hashes[id(step)] = await _send(client, asked, work, step, say)
        await _start(client, asked, options, work.body())
        return await _follow(client, asked, say, work)


async def build_image(client: Client, image: str, options: BuildOptions, say: Say) -> BuiltTemplate:
    """An image as it is, under a name, with a start command. As :func:`build_dockerfile`."""
    asked = await _request(client, options)
    async with _Cancelling(client, asked):
        await _start(client, asked, options, {"docker": {"origin": image}, "steps": []})
        return await _follow(client, asked, say, None)


async def _request(client: Client, options: BuildOptions) -> dict[str, Any]:
    body = {
        "name": options.name,
        "tags": list(options.tags) or None,
        "cpuCount": options.cpu,
        "memoryMB": options.memory_mb,
    }
    given = {name: value for name, value in body.items() if value is not None}
    found: dict[str, Any] = (await client.call("POST", "/v3/templates", json=given)).json()
    return found


async def _start(
    client: Client, asked: dict[str, Any], options: BuildOptions, body: dict[str, Any]
) -> None:
    from_image = options.start_cmd == "image"
    given = {
        **body,
        "force": options.no_cache,
        "hostRegistries": options.host_registries,
        "startImage": from_image,
        "startCmd": None if from_image else options.start_cmd,
        "readyCmd": options.ready_cmd,
    }
    path = f"/v2/templates/{asked['templateID']}/builds/{asked['buildID']}"
    await client.call("POST", path, json=given)


async def _follow(
    client: Client, asked: dict[str, Any], say: Say, work: DockerfileBuild | None
) -> BuiltTemplate:
    path = f"/templates/{asked['templateID']}/builds/{asked['buildID']}/status"
    seen = 0
    while True:
        now = (await client.call("GET", path, params={"logsOffset": seen})).json()
        for entry in now["logEntries"]:
            seen += 1
            await _tell(say, BuildLog(entry["message"], entry["level"], entry.get("step")))
        if now["logEntries"]:
            continue
        if now["status"] == "ready":
            return BuiltTemplate(
                asked["templateID"], asked["names"][0], asked["buildID"], tuple(asked["tags"])
            )
        if now["status"] == "error":
            raise TemplateBuildError(_located(now.get("reason") or {}, work))
        await asyncio.sleep(_POLL)


def _located(reason: dict[str, Any], work: DockerfileBuild | None) -> str:
    message = str(reason.get("message") or "the build failed")
    line = dict(work.lines()).get(str(reason.get("step"))) if work else None
    return f"{work.recipe.file}:{line}: {message}" if work and line else message


async def _send(
    client: Client, asked: dict[str, Any], work: DockerfileBuild, step: BuildStep, say: Say
) -> str:
    """Upload what a step copies, unless the server has it; its hash."""
    assert step.files is not None
    with _located_errors(work, step), tempfile.TemporaryFile() as archive:
        found = await asyncio.to_thread(_known_hash, work.context, step.files)
        if found is None:
            found = await _packed(client, work.context, step.files, archive)
        link = f"/templates/{asked['templateID']}/files/{found}"
        answer = (await client.call("GET", link)).json()
        if answer["present"]:
            return found
        if not archive.tell():
            await _packed(client, work.context, step.files, archive)
        size = archive.tell()
        await _tell(say, BuildLog(f"sending {step.files.path} ({size / 2**20:.1f} MiB)"))
        await _put(client, answer["url"], archive, size)
        return found


@contextmanager
def _located_errors(work: DockerfileBuild, step: BuildStep) -> Iterator[None]:
    import tarfile

    try:
        yield
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{work.recipe.file}:{step.line}: {error}") from error
    except (OSError, EOFError, tarfile.TarError) as error:
        raise InvalidRequestError(f"{work.recipe.file}:{step.line}: {error}") from error


def _known_hash(context: Context, files: Files) -> str | None:
    """The hash where it is known before anything is packed."""
    if files.content is not None or files.url is not None or files.unpack:
        return None
    return context.hash(files.path, context.choose(files.path))


async def _packed(client: Client, context: Context, files: Files, into: BinaryIO) -> str:
    from aenv.dockerfile.contexts import inline

    if files.url is not None:
        content = await _downloaded(files)
        return await asyncio.to_thread(inline, files.path, content, into, 0o600)
    if files.content is not None:
        return await asyncio.to_thread(inline, files.path, files.content, into)
    if files.unpack:
        return await asyncio.to_thread(context.unpacked, files.path, into)
    chosen = await asyncio.to_thread(context.choose, files.path)
    await asyncio.to_thread(context.pack, chosen, into)
    return await asyncio.to_thread(context.hash, files.path, chosen)


async def _downloaded(files: Files) -> bytes:
    """What an ADD names by its URL."""
    assert files.url is not None
    content = bytearray()
    try:
        async with (
            httpx.AsyncClient(follow_redirects=True, timeout=_UPLOAD) as http,
            http.stream("GET", files.url) as answer,
        ):
            answer.raise_for_status()
            async for chunk in answer.aiter_bytes():
                content += chunk
                if len(content) > _MOST_DOWNLOAD:
                    raise InvalidRequestError(f"{files.url} is larger than 1 GiB")
    except httpx.HTTPError as error:
        raise InvalidRequestError(f"{files.url} cannot be fetched: {error}") from error
    if files.checksum is not None:
        found = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if found != files.checksum:
            raise InvalidRequestError(f"{files.url} has {found}, not {files.checksum}")
    return bytes(content)


async def _put(client: Client, url: str, archive: BinaryIO, size: int) -> None:
    async def content() -> AsyncIterator[bytes]:
        archive.seek(0)
        while chunk := await asyncio.to_thread(archive.read, _CHUNK):
            yield chunk

    parts = urlsplit(url)
    here = urlsplit(client.endpoint.url).netloc == parts.netloc
    target = f"{quote(parts.path)}?{parts.query}" if here else url
    try:
        answer = await client.http.put(
            target, content=content(), headers={"content-length": str(size)}, timeout=_UPLOAD
        )
    except httpx.HTTPError as error:
        raise TemplateBuildError(f"the files of the build were not sent: {error!r}") from error
    if answer.is_error:
        said = answer.text[:500]
        raise TemplateBuildError(f"the server refuses the files of the build: {said}")


async def _tell(say: Say, line: BuildLog) -> None:
    if (waiting := say(line)) is not None:
        await waiting


class _Cancelling:
    """Whatever ends the block early ends the build on the server."""

    def __init__(self, client: Client, asked: dict[str, Any]) -> None:
        self._client = client
        self._path = f"/aenv/templates/{asked['templateID']}/builds/{asked['buildID']}/cancel"

    async def __aenter__(self) -> None: ...

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        try:
            await asyncio.shield(asyncio.ensure_future(self._client.call("POST", self._path)))
        except AenvError:
            return  # the first error says more
