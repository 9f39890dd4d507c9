"""The main job, shown: what ``scripts/demo`` runs once everything is installed."""

from __future__ import annotations

import signal
import statistics
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

from aenv import AenvError, Sandbox
from aenv.models.folders import Folders
from aenv.sdk import Output, local_servers

AENV = str(Path(sys.executable).with_name("aenv"))
MEGABYTE = b"0123456789abcdef" * 65536
T = TypeVar("T")

console = Console(highlight=False)


class Timings:
    """Named durations in milliseconds."""

    def __init__(self) -> None:
        self.rows: list[tuple[str, float]] = []

    def measure(self, name: str, work: Callable[[], T]) -> T:
        start = time.perf_counter()
        result = work()
        self.add(name, time.perf_counter() - start)
        return result

    def add(self, name: str, seconds: float) -> None:
        self.rows.append((name, seconds * 1000))

    def show(self) -> None:
        table = Table(title="timings", title_justify="left")
        table.add_column("what")
        table.add_column("ms", justify="right")
        for name, milliseconds in self.rows:
            table.add_row(name, f"{milliseconds:.1f}")
        console.print(table)


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with server():
            run_sandbox()
            build_base()
    except KeyboardInterrupt:
        console.print("\ninterrupted; nothing is left running")
        return 130
    except AenvError as error:
        console.print(f"[red]{error}[/]\nWhat this host lacks: {AENV} doctor")
        return 1
    return 0


@contextmanager
def server() -> Iterator[None]:
    """A local server: the one that runs, else our own, which is stopped at the end."""
    if local_servers.find(Folders.resolve()):
        say("a server is running; using it")
        yield
        return
    say("starting a server in the background: aenv up")
    aenv("up")
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        say("stopping the server: aenv down --kill")
        aenv("down", "--kill")


def run_sandbox() -> None:
    timings = Timings()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        sandbox = timings.measure("create a sandbox", Sandbox)
    for warning in told:
        say(f"note: {warning.message}")
    with sandbox:
        say(f"sandbox {sandbox.id} runs, from the template {sandbox.template}")
        first_command(sandbox, timings)
        files(sandbox, timings)
        stream(sandbox, timings)
        many_commands(sandbox, timings)
        timings.measure("kill it", sandbox.kill)
    timings.show()


def first_command(sandbox: Sandbox, timings: Timings) -> None:
    command = "id -un; uname -sr; python3 --version"
    result = timings.measure("first command", lambda: sandbox.exec(command, check=True))
    show(command, result.stdout)


def files(sandbox: Sandbox, timings: Timings) -> None:
    sandbox.files.write("/home/user/hello.py", "print('hello from', __file__)\n")
    show("python3 hello.py", sandbox.exec("python3 ~/hello.py", check=True).stdout)
    path = "/home/user/megabyte"
    timings.measure("write 1 MiB", lambda: sandbox.files.write(path, MEGABYTE))
    read = timings.measure("read 1 MiB", lambda: sandbox.files.read_bytes(path))
    if read != MEGABYTE:
        raise SystemExit("the file that was read is not the one that was written")


def stream(sandbox: Sandbox, timings: Timings) -> None:
    command = "for i in 1 2 3; do echo line $i; sleep 0.3; done"
    console.print(f"[bold]$ {command}[/]")
    start = time.perf_counter()
    first = 0.0
    for event in sandbox.stream(command):
        if isinstance(event, Output):
            first = first or time.perf_counter() - start
            console.print(event.data.decode(), end="")
    timings.add("first streamed line", first)


def many_commands(sandbox: Sandbox, timings: Timings) -> None:
    def once() -> float:
        start = time.perf_counter()
        sandbox.exec("true", check=True)
        return time.perf_counter() - start

    timings.add("exec `true` (median of 30)", statistics.median(once() for _ in range(30)))


def build_base() -> None:
    say("the template base (built once per host): aenv template build base")
    aenv("template", "build", "base")


def aenv(*arguments: str) -> None:
    done = subprocess.run([AENV, *arguments], check=False)
    if done.returncode:
        raise AenvError(f"`aenv {' '.join(arguments)}` failed with {done.returncode}")


def say(text: str) -> None:
    console.print(f"==> {text}")


def show(command: str, output: str) -> None:
    console.print(f"[bold]$ {command}[/]\n{output.rstrip()}")


if __name__ == "__main__":
    sys.exit(main())
