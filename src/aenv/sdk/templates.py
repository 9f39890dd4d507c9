"""Templates that programs build. ``_sync.py`` is derived from this module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from aenv.models.errors import NotFoundError
from aenv.sdk import creates, servers
from aenv.sdk.building import BuildLog, BuildOptions, BuiltTemplate, build_dockerfile
from aenv.sdk.events import OutputCallback
from aenv.sdk.launches import Command

if TYPE_CHECKING:
    from aenv.sdk.building import DockerfileBuild


class AsyncTemplate:
    """What sandboxes are to start from: an image or a Dockerfile, and steps after it.

    Each method gives a template with one step more, so that several can go on from one. Steps run
    as the image's user, else as root, and nothing in them is replaced on the way.
    """

    def __init__(self, work: DockerfileBuild) -> None:
        self._work = work

    def __repr__(self) -> str:
        return f"AsyncTemplate({self._work.recipe.last.origin!r})"

    @classmethod
    def from_image(cls, image: str, *, context: str | Path = ".") -> AsyncTemplate:
        """``image``: of a registry, or a template's name. ``context``: where files are copied
        from.
        """
        from aenv.sdk import building_steps

        return cls(building_steps.of_image(image, Path(context)))

    @classmethod
    def from_dockerfile(
        cls,
        context: str | Path = ".",
        *,
        dockerfile: str | Path | None = None,
        build_args: Mapping[str, str] | None = None,
        target: str | None = None,
    ) -> AsyncTemplate:
        """InvalidRequestError names the file and line of a mistake."""
        from aenv.sdk.building import DockerfileBuild

        file = Path(dockerfile) if dockerfile is not None else None
        return cls(DockerfileBuild.read(Path(context), file, build_args, target))

    def run(self, command: Command, *, user: str | None = None) -> AsyncTemplate:
        """``command``: a line for ``/bin/sh``, or a program with its arguments."""
        from aenv.sdk import building_steps

        return self._and(building_steps.run(command, user))

    def copy(
        self, source: str, target: str, *, owner: str | None = None, mode: int | None = None
    ) -> AsyncTemplate:
        """Files of the context, as a Dockerfile's COPY takes them; root's unless ``owner`` says."""
        from aenv.sdk import building_steps

        return self._and(building_steps.copy(source, target, owner, mode))

    def env(self, variables: Mapping[str, str]) -> AsyncTemplate:
        from aenv.sdk import building_steps

        return self._and(building_steps.env(variables))

    def workdir(self, path: str) -> AsyncTemplate:
        from aenv.sdk import building_steps

        return self._and(building_steps.workdir(path))

    def user(self, name: str) -> AsyncTemplate:
        from aenv.sdk import building_steps

        return self._and(building_steps.user(name))

    async def build(
        self,
        name: str,
        *,
        tags: Sequence[str] = (),
        cpu: float | None = None,
        memory_mb: int | None = None,
        start_cmd: str | None = None,
        ready_cmd: str | None = None,
        no_cache: bool = False,
        host_registries: bool = True,
        on_log: OutputCallback | None = None,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> BuiltTemplate:
        """Build it under ``name`` or ``name:tag``; ``Sandbox(name)`` starts from it afterwards.

        ``start_cmd`` runs in it, "image": what the image's ENTRYPOINT and CMD say; it is ready when
        ``ready_cmd`` succeeds. ``host_registries``: steps reach package registries as the server's
        host does. ``on_log`` is given each line. Raises TemplateBuildError; cancelled, it ends the
        build on the server.
        """
        options = BuildOptions(
            name=name,
            tags=tuple(tags),
            cpu=cpu,
            memory_mb=memory_mb,
            start_cmd=start_cmd,
            ready_cmd=ready_cmd,
            no_cache=no_cache,
            host_registries=host_registries,
        )

        async def say(line: BuildLog) -> None:
            if on_log is not None and (waiting := on_log(line.message)) is not None:
                await waiting

        client = await servers.connect(url, api_key, profile)
        try:
            return await build_dockerfile(client, self._work, options, say)
        finally:
            await client.aclose()

    @classmethod
    async def delete(
        cls,
        name: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> bool:
        """Free a template; False if there is none of that name."""
        client = await servers.connect(url, api_key, profile)
        try:
            await creates.delete_template(client, name)
        except NotFoundError:
            return False
        finally:
            await client.aclose()
        return True

    def _and(self, step: object) -> AsyncTemplate:
        from aenv.dockerfile.stages import BuildStep
        from aenv.sdk import building_steps

        assert isinstance(step, BuildStep)
        return AsyncTemplate(building_steps.with_step(self._work, step))
