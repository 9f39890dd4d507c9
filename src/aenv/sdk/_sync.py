"""The sync face, derived from the async one: ``python -m aenv.sdk._derive`` writes it."""

from __future__ import annotations

import builtins
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Literal

from aenv.models.sandboxes import NetworkPolicy, SandboxMetrics
from aenv.sdk._loops import iterate, run, threaded
from aenv.sdk.archives import Progress
from aenv.sdk.building import BuiltTemplate
from aenv.sdk.events import OutputCallback, ProcessEvent
from aenv.sdk.files import AsyncFiles
from aenv.sdk.launches import LOGIN_SHELL, Command, SignalName
from aenv.sdk.processes import AsyncProcess
from aenv.sdk.results import (
    CommandResult,
    EntryInfo,
    FileEvent,
    LogLine,
    ProcessInfo,
    SandboxInfo,
)
from aenv.sdk.sandboxes import AsyncSandbox
from aenv.sdk.snapshots import AsyncSnapshot, SnapshotInfo
from aenv.sdk.templates import AsyncTemplate
from aenv.sdk.volumes import AsyncVolume, VolumeFile, VolumeInfo
from aenv.sdk.watches import AsyncWatch


class Watch:
    """Iterate it for changes; close it (or leave its context) to stop."""

    _core: AsyncWatch

    @classmethod
    def _of(cls, core: AsyncWatch) -> Watch:
        made = cls.__new__(cls)
        made._core = core
        return made

    def __iter__(self) -> Generator[FileEvent, None, None]:
        return iterate(self._core.__aiter__())

    def close(self) -> None:
        run(self._core.close())

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run(self._core.__aexit__(kind, error, trace))

    def __repr__(self) -> str:
        return repr(self._core).removeprefix("Async")


class Process:
    """It outlives this handle; only :meth:`kill`, its timeout or the sandbox's end stop it."""

    _core: AsyncProcess

    @classmethod
    def _of(cls, core: AsyncProcess) -> Process:
        made = cls.__new__(cls)
        made._core = core
        return made

    @property
    def pid(self) -> int:
        return self._core.pid

    @property
    def stdout(self) -> str:
        """What a background process wrote so far (the newest 8 MiB)."""
        return self._core.stdout

    @property
    def stderr(self) -> str:
        return self._core.stderr

    def events(self) -> Generator[ProcessEvent, None, None]:
        """Output as it comes, then one ``Exited``."""
        return iterate(self._core.events())

    def wait(self, timeout: float | None = None) -> CommandResult:
        """Wait for the end. ``timeout`` ends only the waiting: the process runs on."""
        return run(self._core.wait(timeout))

    def send_stdin(self, data: str | bytes) -> None:
        """Write to its stdin or terminal. NotFoundError when it has ended."""
        run(self._core.send_stdin(data))

    def close_stdin(self) -> None:
        run(self._core.close_stdin())

    def resize(self, cols: int, rows: int) -> None:
        run(self._core.resize(cols, rows))

    def kill(self, signal: SignalName = "KILL") -> bool:
        """Signal it and its children; False when it had ended already."""
        return run(self._core.kill(signal))

    def disconnect(self) -> None:
        """Stop reading; the process runs on."""
        run(self._core.disconnect())

    def __repr__(self) -> str:
        return repr(self._core).removeprefix("Async")


class Files:
    """Relative paths start at the user's home. ``user`` decides rights and ownership."""

    _core: AsyncFiles

    @classmethod
    def _of(cls, core: AsyncFiles) -> Files:
        made = cls.__new__(cls)
        made._core = core
        return made

    def read(self, path: str, *, user: str | None = None) -> str:
        """The text of a file, decoded as UTF-8 with replacement. NotFoundError when missing."""
        return run(self._core.read(path, user=user))

    def read_bytes(self, path: str, *, user: str | None = None) -> bytes:
        return run(self._core.read_bytes(path, user=user))

    def stream(self, path: str, *, user: str | None = None) -> Generator[bytes, None, None]:
        """The file in pieces, for what does not fit in memory."""
        return iterate(self._core.stream(path, user=user))

    def write(self, path: str, data: str | bytes | IO[bytes], *, user: str | None = None) -> str:
        """Create or replace a file and return its absolute path. Parents are made.

        DiskFullError when it does not fit; nothing is left then.
        """
        return run(self._core.write(path, data, user=user))

    def list(
        self, path: str = ".", *, depth: int = 1, user: str | None = None
    ) -> builtins.list[EntryInfo]:
        """The entries of a directory, ``depth`` levels down."""
        return run(self._core.list(path, depth=depth, user=user))

    def stat(self, path: str, *, user: str | None = None) -> EntryInfo:
        """NotFoundError when missing."""
        return run(self._core.stat(path, user=user))

    def exists(self, path: str, *, user: str | None = None) -> bool:
        return run(self._core.exists(path, user=user))

    def make_dir(self, path: str, *, user: str | None = None) -> bool:
        """Make it and its parents; False when it is there already."""
        return run(self._core.make_dir(path, user=user))

    def move(self, source: str, destination: str, *, user: str | None = None) -> EntryInfo:
        return run(self._core.move(source, destination, user=user))

    def remove(self, path: str, *, user: str | None = None) -> None:
        """Remove a file or a whole directory; no error when it is not there."""
        run(self._core.remove(path, user=user))

    def watch(self, path: str, *, recursive: bool = False, user: str | None = None) -> Watch:
        """Watch a directory; every change after this call returned is seen.

        NotFoundError when missing, InvalidRequestError when it is no directory.
        """
        return Watch._of(run(self._core.watch(path, recursive=recursive, user=user)))

    def upload(
        self,
        source: str | Path,
        destination: str,
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Copy a local file or tree; modes, mtimes and symlinks are kept (by tar in the guest)."""
        run(self._core.upload(source, destination, user=user, progress=progress))

    def download(
        self,
        source: str,
        destination: str | Path,
        *,
        user: str | None = None,
        progress: Progress | None = None,
    ) -> builtins.list[str]:
        """Copy a file or tree to this machine; nothing is written outside ``destination``.

        Returns what was left out: special files, and symlinks that point outside of the copy.
        """
        return run(self._core.download(source, destination, user=user, progress=progress))

    def __repr__(self) -> str:
        return repr(self._core).removeprefix("Async")


class Snapshot:
    """The snapshots of a server. ``url``, ``api_key`` and ``profile`` name it as for sandboxes."""

    _core: AsyncSnapshot

    @classmethod
    def _of(cls, core: AsyncSnapshot) -> Snapshot:
        made = cls.__new__(cls)
        made._core = core
        return made

    @classmethod
    def list(
        cls,
        *,
        sandbox: str | None = None,
        name: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> builtins.list[SnapshotInfo]:
        """The newest first; those of one source ``sandbox``, or of one ``name``, if given."""
        return run(
            AsyncSnapshot.list(
                sandbox=sandbox, name=name, url=url, api_key=api_key, profile=profile
            )
        )

    @classmethod
    def get(
        cls,
        snapshot_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> SnapshotInfo:
        """By id or name; NotFoundError."""
        return run(AsyncSnapshot.get(snapshot_id, url=url, api_key=api_key, profile=profile))

    @classmethod
    def verify(
        cls,
        snapshot_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> None:
        """Have all of it read and compared. SnapshotDamagedError, NotFoundError."""
        run(AsyncSnapshot.verify(snapshot_id, url=url, api_key=api_key, profile=profile))

    @classmethod
    def evict(
        cls,
        snapshot_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> None:
        """Have it in the blob store alone; what starts from it fetches it again. Also the id of a
        paused sandbox. NotFoundError, ConflictError while something starts from it.
        """
        run(AsyncSnapshot.evict(snapshot_id, url=url, api_key=api_key, profile=profile))

    @classmethod
    def delete(
        cls,
        snapshot_id: str,
        *,
        all_tags: bool = False,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> bool:
        """Free it; sandboxes that were started from it run on. False when there is none. A name
        means its default tag; ``all_tags``: every tag of that name.
        """
        return run(
            AsyncSnapshot.delete(
                snapshot_id, all_tags=all_tags, url=url, api_key=api_key, profile=profile
            )
        )

    def __repr__(self) -> str:
        return repr(self._core).removeprefix("Async")


class Template:
    """What sandboxes are to start from: an image or a Dockerfile, and steps after it.

    Each method gives a template with one step more, so that several can go on from one. Steps run
    as the image's user, else as root, and nothing in them is replaced on the way.
    """

    _core: AsyncTemplate

    @classmethod
    def _of(cls, core: AsyncTemplate) -> Template:
        made = cls.__new__(cls)
        made._core = core
        return made

    @classmethod
    def from_image(cls, image: str, *, context: str | Path = ".") -> Template:
        """``image``: of a registry, or a template's name. ``context``: where files are copied
        from.
        """
        return cls._of(AsyncTemplate.from_image(image, context=context))

    @classmethod
    def from_dockerfile(
        cls,
        context: str | Path = ".",
        *,
        dockerfile: str | Path | None = None,
        build_args: Mapping[str, str] | None = None,
        target: str | None = None,
    ) -> Template:
        """InvalidRequestError names the file and line of a mistake."""
        return cls._of(
            AsyncTemplate.from_dockerfile(
                context, dockerfile=dockerfile, build_args=build_args, target=target
            )
        )

    def run(self, command: Command, *, user: str | None = None) -> Template:
        """``command``: a line for ``/bin/sh``, or a program with its arguments."""
        return Template._of(self._core.run(command, user=user))

    def copy(
        self, source: str, target: str, *, owner: str | None = None, mode: int | None = None
    ) -> Template:
        """Files of the context, as a Dockerfile's COPY takes them; root's unless ``owner`` says."""
        return Template._of(self._core.copy(source, target, owner=owner, mode=mode))

    def env(self, variables: Mapping[str, str]) -> Template:
        return Template._of(self._core.env(variables))

    def workdir(self, path: str) -> Template:
        return Template._of(self._core.workdir(path))

    def user(self, name: str) -> Template:
        return Template._of(self._core.user(name))

    def build(
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
        return run(
            self._core.build(
                name,
                tags=tags,
                cpu=cpu,
                memory_mb=memory_mb,
                start_cmd=start_cmd,
                ready_cmd=ready_cmd,
                no_cache=no_cache,
                host_registries=host_registries,
                on_log=threaded(on_log),
                url=url,
                api_key=api_key,
                profile=profile,
            )
        )

    @classmethod
    def delete(
        cls,
        name: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> bool:
        """Free a template; False if there is none of that name."""
        return run(AsyncTemplate.delete(name, url=url, api_key=api_key, profile=profile))

    def __repr__(self) -> str:
        return repr(self._core).removeprefix("Async")


class Volume:
    """A volume and its files; paths are those within it. ``url``, ``api_key`` and ``profile`` name
    the server as for sandboxes.
    """

    _core: AsyncVolume

    @classmethod
    def _of(cls, core: AsyncVolume) -> Volume:
        made = cls.__new__(cls)
        made._core = core
        return made

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def name(self) -> str:
        return self._core.name

    @classmethod
    def open(
        cls,
        name: str,
        *,
        create: bool = True,
        size_mb: int | None = None,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> Volume:
        """The volume of that name, or id, made if there is none. NotFoundError without ``create``.
        ``size_mb``: of one that is made.
        """
        return cls._of(
            run(
                AsyncVolume.open(
                    name, create=create, size_mb=size_mb, url=url, api_key=api_key, profile=profile
                )
            )
        )

    @classmethod
    def list(
        cls, *, url: str | None = None, api_key: str | None = None, profile: str | None = None
    ) -> builtins.list[VolumeInfo]:
        """By name."""
        return run(AsyncVolume.list(url=url, api_key=api_key, profile=profile))

    def close(self) -> None:
        """Close the connections; the volume stays."""
        run(self._core.close())

    def info(self) -> VolumeInfo:
        """As it is now."""
        return run(self._core.info())

    def seal(self) -> VolumeInfo:
        """Make it read-only for good; ``digest`` is then that of its tree. ConflictError while a
        sandbox may write to it.
        """
        return run(self._core.seal())

    def delete(self) -> None:
        """ConflictError names the sandboxes that have it, running or paused."""
        run(self._core.delete())

    def read(self, path: str) -> bytes:
        """A whole file."""
        return run(self._core.read(path))

    def stream(self, path: str) -> Generator[bytes, None, None]:
        """A file, as it comes."""
        return iterate(self._core.stream(path))

    def download(self, path: str, target: str | Path) -> Path:
        """A file, to one of this machine, which is there as a whole or as before."""
        return run(self._core.download(path, target))

    def write(self, path: str, data: str | bytes | Path) -> VolumeFile:
        """A file, whole or as before; ``data``: its content, or a file of this machine. Folders
        above it are made.
        """
        return run(self._core.write(path, data))

    def files(self, path: str = "/", *, depth: int = 1) -> builtins.list[VolumeFile]:
        """What is below a folder, ``depth`` (1 to 64) levels deep."""
        return run(self._core.files(path, depth=depth))

    def make_dir(self, path: str) -> VolumeFile:
        """With the folders above it; one that is there stays as it is."""
        return run(self._core.make_dir(path))

    def remove(self, path: str) -> None:
        """A folder with all in it. NotFoundError."""
        run(self._core.remove(path))

    def __repr__(self) -> str:
        return repr(self._core).removeprefix("Async")


class Sandbox:
    """An isolated machine. Made by :meth:`create`, found again by :meth:`attach` or
    :meth:`connect`.

    As a context manager it is killed at the end. ``url``, ``api_key`` and ``profile`` name the
    server; without them ``AENV_SYSTEM_URL`` and the default profile do, else the local server is
    used and started when none runs.
    """

    _core: AsyncSandbox

    def __init__(
        self,
        template: str | None = None,
        *,
        timeout: int = 300,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        auto_pause: bool = False,
        auto_pause_memory: bool = True,
        auto_resume: bool = False,
        volumes: Mapping[str, str] | None = None,
        cpu: float | None = None,
        memory_mb: int | None = None,
        disk_mb: int | None = None,
        network: NetworkPolicy | None = None,
        engine: str | None = None,
        wait: float = 1200,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> None:
        """Start a sandbox that lives ``timeout`` seconds unless extended.

        Without ``template`` it is ``base``, or ``host`` (with a warning) while ``base`` is not
        built. A template that is being built is waited for, up to ``wait`` seconds. ``engine``
        names another engine than the server's; ``"process"`` isolates nothing. ``template`` may be
        a snapshot's id.

        ``secrets`` are variables that forks and sandboxes from its snapshots are not given. With
        ``auto_pause`` it is paused at the end of its time instead of killed, with ``auto_resume``
        any traffic to it then resumes it. ``volumes``: path in the sandbox → name of a volume.
        """
        self._core = run(
            AsyncSandbox.create(
                template,
                timeout=timeout,
                env=env,
                secrets=secrets,
                metadata=metadata,
                auto_pause=auto_pause,
                auto_pause_memory=auto_pause_memory,
                auto_resume=auto_resume,
                volumes=volumes,
                cpu=cpu,
                memory_mb=memory_mb,
                disk_mb=disk_mb,
                network=network,
                engine=engine,
                wait=wait,
                url=url,
                api_key=api_key,
                profile=profile,
            )
        )

    @classmethod
    def _of(cls, core: AsyncSandbox) -> Sandbox:
        made = cls.__new__(cls)
        made._core = core
        return made

    @classmethod
    def create(
        cls,
        template: str | None = None,
        *,
        timeout: int = 300,
        env: Mapping[str, str] | None = None,
        secrets: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        auto_pause: bool = False,
        auto_pause_memory: bool = True,
        auto_resume: bool = False,
        volumes: Mapping[str, str] | None = None,
        cpu: float | None = None,
        memory_mb: int | None = None,
        disk_mb: int | None = None,
        network: NetworkPolicy | None = None,
        engine: str | None = None,
        wait: float = 1200,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> Sandbox:
        """Start a sandbox that lives ``timeout`` seconds unless extended.

        Without ``template`` it is ``base``, or ``host`` (with a warning) while ``base`` is not
        built. A template that is being built is waited for, up to ``wait`` seconds. ``engine``
        names another engine than the server's; ``"process"`` isolates nothing. ``template`` may be
        a snapshot's id.

        ``secrets`` are variables that forks and sandboxes from its snapshots are not given. With
        ``auto_pause`` it is paused at the end of its time instead of killed, with ``auto_resume``
        any traffic to it then resumes it. ``volumes``: path in the sandbox → name of a volume.
        """
        return cls._of(
            run(
                AsyncSandbox.create(
                    template,
                    timeout=timeout,
                    env=env,
                    secrets=secrets,
                    metadata=metadata,
                    auto_pause=auto_pause,
                    auto_pause_memory=auto_pause_memory,
                    auto_resume=auto_resume,
                    volumes=volumes,
                    cpu=cpu,
                    memory_mb=memory_mb,
                    disk_mb=disk_mb,
                    network=network,
                    engine=engine,
                    wait=wait,
                    url=url,
                    api_key=api_key,
                    profile=profile,
                )
            )
        )

    @classmethod
    def attach(
        cls,
        sandbox_id: str,
        *,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> Sandbox:
        """A handle on a sandbox that exists; its life time stays as it is."""
        return cls._of(
            run(AsyncSandbox.attach(sandbox_id, url=url, api_key=api_key, profile=profile))
        )

    @classmethod
    def connect(
        cls,
        sandbox_id: str,
        *,
        timeout: int = 300,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> Sandbox:
        """Like :meth:`attach`, and it lives at least ``timeout`` seconds from now; a paused one is
        resumed.
        """
        return cls._of(
            run(
                AsyncSandbox.connect(
                    sandbox_id, timeout=timeout, url=url, api_key=api_key, profile=profile
                )
            )
        )

    @classmethod
    def list(
        cls,
        *,
        metadata: Mapping[str, str] | None = None,
        state: Literal["running", "paused"] | None = None,
        url: str | None = None,
        api_key: str | None = None,
        profile: str | None = None,
    ) -> builtins.list[SandboxInfo]:
        """All sandboxes of the key, newest first; only those with all of ``metadata``, or in
        ``state``, if given.
        """
        return run(
            AsyncSandbox.list(
                metadata=metadata, state=state, url=url, api_key=api_key, profile=profile
            )
        )

    @property
    def id(self) -> str:
        return self._core.id

    @property
    def template(self) -> str:
        """The template's name, or its id where it has no name."""
        return self._core.template

    @property
    def traffic_headers(self) -> dict[str, str]:
        """What the server's proxy wants to see to let requests through to any port of it."""
        return self._core.traffic_headers

    @property
    def server_url(self) -> str:
        return self._core.server_url

    @property
    def files(self) -> Files:
        return Files._of(self._core.files)

    def host(self, port: int) -> str:
        """The host name under which the server forwards to a port of the sandbox."""
        return self._core.host(port)

    def url(self, port: int) -> str:
        """Where a browser or HTTP client reaches a port of the sandbox."""
        return self._core.url(port)

    def info(self) -> SandboxInfo:
        """SandboxNotFoundError once it is gone."""
        return run(self._core.info())

    def metrics(self) -> builtins.list[SandboxMetrics]:
        """Samples in time order; the newest is the last."""
        return run(self._core.metrics())

    def logs(self, *, limit: int = 1000, search: str | None = None) -> builtins.list[LogLine]:
        """The newest ``limit`` lines of the sandbox's processes and agent, oldest first."""
        return run(self._core.logs(limit=limit, search=search))

    def follow_logs(
        self, *, limit: int = 1000, search: str | None = None
    ) -> Generator[LogLine, None, None]:
        """The newest ``limit`` lines, then new ones as they come, until the sandbox ends."""
        return iterate(self._core.follow_logs(limit=limit, search=search))

    def set_timeout(self, seconds: int) -> None:
        """Let it end so many seconds from now, sooner or later than before."""
        run(self._core.set_timeout(seconds))

    def extend(self, seconds: int) -> None:
        """Let it live at least so many seconds from now."""
        run(self._core.extend(seconds))

    def set_network(self, policy: NetworkPolicy) -> None:
        """Replace the egress rules; they hold for new connections at once."""
        run(self._core.set_network(policy))

    def fork(
        self, count: int = 1, *, timeout: int = 300, secrets: bool = False
    ) -> builtins.list[Sandbox]:
        """``count`` new sandboxes that go on from this moment, memory included; this one runs on.

        All of them or none: when one fails the others are killed and its error is raised. With
        ``secrets`` they are given the secret variables, too.
        """
        return [
            Sandbox._of(core)
            for core in run(self._core.fork(count, timeout=timeout, secrets=secrets))
        ]

    def kill(self) -> bool:
        """End it and free all it holds; False when it was gone already."""
        return run(self._core.kill())

    def close(self) -> None:
        """Let go of connections; the sandbox lives on."""
        run(self._core.close())

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        run(self._core.__aexit__(kind, error, trace))

    def exec(
        self,
        command: Command,
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
        check: bool = False,
    ) -> CommandResult:
        """Run a command and wait for it. A string goes to ``bash -l -c``, a sequence runs as it is.

        CommandTimeoutError when it runs past ``timeout`` seconds (it is killed and its output
        is in the error); with ``check`` CommandFailedError for a status other than 0.
        Cancelling kills it.
        """
        return run(
            self._core.exec(
                command,
                user=user,
                cwd=cwd,
                env=env,
                timeout=timeout,
                stdin=stdin,
                on_stdout=threaded(on_stdout),
                on_stderr=threaded(on_stderr),
                check=check,
            )
        )

    def stream(
        self,
        command: Command,
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: str | bytes | None = None,
    ) -> Generator[ProcessEvent, None, None]:
        """Run a command and yield ``Started``, ``Output``…, ``Exited``. Leaving early kills it."""
        return iterate(
            self._core.stream(command, user=user, cwd=cwd, env=env, timeout=timeout, stdin=stdin)
        )

    def spawn(
        self,
        command: Command,
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
        on_stdout: OutputCallback | None = None,
        on_stderr: OutputCallback | None = None,
    ) -> Process:
        """Start a command in the background. ``stdin``: keep it open for ``send_stdin``."""
        return Process._of(
            run(
                self._core.spawn(
                    command,
                    user=user,
                    cwd=cwd,
                    env=env,
                    timeout=timeout,
                    stdin=stdin,
                    on_stdout=threaded(on_stdout),
                    on_stderr=threaded(on_stderr),
                )
            )
        )

    def open(
        self,
        command: Command,
        *,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        stdin: bool = False,
    ) -> Process:
        """Start a command whose output you read from ``events()``; a slow reader slows it.

        ``stdin``: keep it open for ``send_stdin``.
        """
        return Process._of(
            run(self._core.open(command, user=user, cwd=cwd, env=env, timeout=timeout, stdin=stdin))
        )

    def pty(
        self,
        command: Command = LOGIN_SHELL,
        *,
        cols: int = 80,
        rows: int = 24,
        user: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> Process:
        """Start a command on a terminal. Iterate ``events()`` for its output."""
        return Process._of(
            run(
                self._core.pty(
                    command, cols=cols, rows=rows, user=user, cwd=cwd, env=env, timeout=timeout
                )
            )
        )

    def processes(self) -> builtins.list[ProcessInfo]:
        """What was started through the API and still runs."""
        return run(self._core.processes())

    def process(self, pid: int) -> Process:
        """A foreground handle on a running process, or on one that ended a moment ago."""
        return Process._of(run(self._core.process(pid)))

    def pause(self, *, memory: bool = True) -> bool:
        """Let it rest on disk until :meth:`resume`, without costing anything and without an end.
        False when it was paused already.

        Without ``memory`` only its files are kept, and it boots again on resume. Streams are cut;
        the processes behind them go on after the resume.
        """
        return run(self._core.pause(memory=memory))

    def resume(self, *, timeout: int = 300, memory: bool = True) -> bool:
        """Let it run again, and live at least ``timeout`` seconds from now. False when it ran.

        Without ``memory`` it boots from its files, whatever the pause has kept.
        """
        return run(self._core.resume(timeout=timeout, memory=memory))

    def snapshot(self, name: str | None = None, *, memory: bool = True) -> SnapshotInfo:
        """Keep it as it is now; it runs on. Start others by ``create(snapshot.id)``.

        A name may hold a tag, ``name:tag``; the same again takes the place of the older one.
        """
        return run(self._core.snapshot(name, memory=memory))

    def rollback(self, snapshot: SnapshotInfo | str, *, timeout: int = 300) -> None:
        """Go back to a snapshot: this object is from now on a new sandbox, started from it, with
        the old one's metadata, network rules and lifecycle; then the old one is killed.

        So :attr:`id`, host names and tokens change, and a rollback that fails changes nothing: the
        old sandbox runs until the new one does. Secret variables are handed on if this object has
        made the sandbox. Processes and watches of the old one end.
        """
        run(self._core.rollback(snapshot, timeout=timeout))

    def __repr__(self) -> str:
        return repr(self._core).removeprefix("Async")
