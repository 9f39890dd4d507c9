"""``start``, ``exec``, ``cn``: commands and terminals in sandboxes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from aenv.cli import streams
from aenv.cli.apps import NOT_THE_COMMANDS, PASS_THROUGH, SANDBOXES, command, common, is_tty
from aenv.cli.outputs import emit, emit_json, note, pairs
from aenv.cli.sandboxes import Reference
from aenv.cli.sessions import run, sandbox
from aenv.cli.volumes import mounts

if TYPE_CHECKING:
    from aenv.sdk import AsyncProcess, AsyncSandbox

LEASE = 300
"""Seconds an attached sandbox outlives a terminal that vanished."""
BROKEN_PIPE = 141

User = Annotated[str | None, typer.Option("-u", "--user", help="Run as this user.")]
Workdir = Annotated[str | None, typer.Option("-w", "--workdir", help="Run in this directory.")]
Variables = Annotated[
    list[str] | None, typer.Option("-e", "--env", help="Set a variable, KEY=VALUE.")
]


@dataclass(frozen=True, slots=True)
class How:
    """As whom, where and with what a command runs."""

    user: str | None
    cwd: str | None
    env: Mapping[str, str]
    timeout: float | None


@command("start", SANDBOXES)
def start(
    template: Annotated[str | None, typer.Argument(help="Default: base.")] = None,
    detach: Annotated[
        bool, typer.Option("-d", "--detach", help="Print the id and leave it running.")
    ] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep it when the shell ends.")] = False,
    timeout: Annotated[int, typer.Option(min=1, help="Seconds it lives when detached.")] = LEASE,
    cpu: Annotated[float | None, typer.Option(min=0.1, help="vCPUs.")] = None,
    memory: Annotated[int | None, typer.Option(min=64, help="MiB.")] = None,
    disk: Annotated[int | None, typer.Option(min=64, help="MiB.")] = None,
    env: Variables = None,
    metadata: Annotated[
        list[str] | None, typer.Option("-m", "--metadata", help="A label, KEY=VALUE.")
    ] = None,
    volume: Annotated[
        list[str] | None,
        typer.Option("-v", "--volume", metavar="NAME:/PATH", help="A volume, and where."),
    ] = None,
    engine: Annotated[
        str | None, typer.Option(help="Another engine; `process` isolates nothing.")
    ] = None,
) -> None:
    """Start a sandbox with a shell in it; both end together, unless -d or --keep."""
    if engine == "process":
        from aenv.models.settings import NO_ISOLATION

        note(f"aenv: {NO_ISOLATION}")

    async def create() -> AsyncSandbox:
        from aenv.sdk import AsyncSandbox

        return await AsyncSandbox.create(
            template,
            timeout=timeout,
            env=pairs(env or [], "--env"),
            metadata=pairs(metadata or [], "--metadata"),
            volumes=mounts(volume),
            cpu=cpu,
            memory_mb=memory,
            disk_mb=disk,
            engine=engine,
            **common.server,
        )

    raise typer.Exit(run(_start(create, detach=detach, keep=keep)))


@command("exec", SANDBOXES, context_settings=PASS_THROUGH)
def exec_(
    reference: Reference,
    words: Annotated[list[str], typer.Argument(metavar="CMD...")],
    interactive: Annotated[
        bool, typer.Option("-i", "--interactive", help="Pass stdin even from a terminal.")
    ] = False,
    terminal: Annotated[bool, typer.Option("-t", "--tty", help="Run on a terminal.")] = False,
    no_stdin: Annotated[bool, typer.Option("-n", "--no-stdin", help="Leave stdin alone.")] = False,
    user: User = None,
    workdir: Workdir = None,
    env: Variables = None,
    timeout: Annotated[
        float | None, typer.Option(min=0, help="Kill it after so many seconds.")
    ] = None,
) -> None:
    """Run a command; stdin, stdout, stderr and the exit code pass through."""
    if terminal and not is_tty(0):
        raise typer.BadParameter("-t needs a terminal as stdin; leave it out in scripts and pipes")
    common.failed = NOT_THE_COMMANDS
    how = How(user, workdir, pairs(env or [], "--env"), timeout)
    argv = words[1:] if words[0] == "--" else words
    if terminal:
        raise typer.Exit(run(_exec_on_terminal(reference, argv, how)))
    stdin = not no_stdin and (interactive or not is_tty(0))
    raise typer.Exit(run(_exec(reference, argv, how, stdin=stdin)))


@command("cn", SANDBOXES)
@command("connect", SANDBOXES, hidden=True)
def connect(reference: Reference, user: User = None, workdir: Workdir = None) -> None:
    """Open a shell in a running sandbox; it goes on when the shell ends."""
    common.failed = NOT_THE_COMMANDS

    async def open_shell() -> int:
        async with sandbox(reference) as found, _kept_alive(found):
            return await _shell(found, user, workdir)

    raise typer.Exit(run(open_shell()))


async def _start(create: Callable[[], Awaitable[AsyncSandbox]], *, detach: bool, keep: bool) -> int:
    made = await create()
    try:
        if detach:
            emit_json({"id": made.id, "template": made.template}) if common.json else emit(made.id)
            return 0
        note(f"sandbox {made.id} from {made.template}")
        async with _kept_alive(made):
            return await _shell(made)
    finally:
        if not (detach or keep):
            await asyncio.shield(made.kill())
        await made.close()


async def _shell(found: AsyncSandbox, user: str | None = None, workdir: str | None = None) -> int:
    """A login shell on our terminal, or one that reads its commands from our stdin."""
    from aenv.cli import terminals

    if not is_tty(0):
        shell = await found.open(["/bin/bash", "-l"], user=user, cwd=workdir, stdin=True)
        return await _joined(shell, stdin=True)
    cols, rows = terminals.size()
    process = await found.pty(cols=cols, rows=rows, user=user, cwd=workdir)
    async with _killed_at_the_end(process):
        return await terminals.join(process)


async def _exec(reference: str, argv: list[str], how: How, *, stdin: bool) -> int:
    async with sandbox(reference) as found:
        with _hinted(argv[0]):
            process = await found.open(
                argv, user=how.user, cwd=how.cwd, env=how.env, timeout=how.timeout, stdin=stdin
            )
        return await _joined(process, stdin=stdin)


@contextmanager
def _hinted(word: str) -> Iterator[None]:
    """What a word that is no command's name was probably meant as."""
    from aenv.models.errors import CommandNotFoundError

    try:
        yield
    except CommandNotFoundError as error:
        hint = ""
        if word.startswith("-"):
            hint = "; options of aenv stand before ID: aenv exec [OPTIONS] ID CMD"
        elif any(character.isspace() for character in word):
            hint = "; for a line of shell: aenv exec ID sh -c 'LINE'"
        raise CommandNotFoundError(f"{error}{hint}") from None


async def _exec_on_terminal(reference: str, argv: list[str], how: How) -> int:
    from aenv.cli import terminals

    cols, rows = terminals.size()
    async with sandbox(reference) as found:
        with _hinted(argv[0]):
            process = await found.pty(
                argv,
                cols=cols,
                rows=rows,
                user=how.user,
                cwd=how.cwd,
                env=how.env,
                timeout=how.timeout,
            )
        async with _killed_at_the_end(process):
            return await terminals.join(process)


async def _joined(process: AsyncProcess, *, stdin: bool) -> int:
    async with _killed_at_the_end(process):
        try:
            return await streams.join(process, stdin=stdin)
        except streams.ClosedOutputError:
            return BROKEN_PIPE


@asynccontextmanager
async def _killed_at_the_end(process: AsyncProcess) -> AsyncIterator[None]:
    """Ctrl-C here, or a closed pipe, is the end of the command there."""
    from aenv.models.errors import AenvError

    try:
        yield
    finally:
        with suppress(AenvError):
            await asyncio.shield(process.kill())
        await process.disconnect()


@asynccontextmanager
async def _kept_alive(found: AsyncSandbox) -> AsyncIterator[None]:
    """While somebody is attached the sandbox does not run out of time."""
    keeper = asyncio.create_task(_extend(found))
    try:
        yield
    finally:
        keeper.cancel()
        await asyncio.gather(keeper, return_exceptions=True)


async def _extend(found: AsyncSandbox) -> None:
    from aenv.models.errors import AenvError

    while True:
        with suppress(AenvError):  # the shell's own stream reports a lost server
            await found.extend(LEASE)
        await asyncio.sleep(LEASE / 5)
