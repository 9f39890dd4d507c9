"""The sync face is derived, complete, and behaves like the async one."""

from __future__ import annotations

import asyncio
import inspect
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
from tests.fakes.agents import agent_binary
from tests.fakes.control_plane import KEY, ControlPlane

import aenv.sdk
from aenv import Sandbox
from aenv.models.errors import InvalidRequestError
from aenv.sdk import Exited, _derive, _loops


@pytest.fixture
def plane(tmp_path: Path) -> Iterator[ControlPlane]:
    found = ControlPlane(agent_binary(), tmp_path / "guests")
    _loops.run(found.start())
    yield found
    _loops.run(found.close())


@pytest.fixture
def sandbox(plane: ControlPlane) -> Iterator[Sandbox]:
    with Sandbox("base", url=plane.url, api_key=KEY) as found:
        yield found


def test_the_file_is_what_the_generator_writes() -> None:
    """If this fails: python -m aenv.sdk._derive"""
    assert _derive.formatted(_derive.derive()) == _derive.TARGET.read_text()


def test_every_exported_name_is_there_and_httpx_comes_without_its_command() -> None:
    for name in aenv.sdk.__all__:
        assert getattr(aenv.sdk, name) is not None
    script = (
        "import sys; from aenv import Sandbox; "
        "assert not {'pygments', 'rich', 'click'} & set(sys.modules); import httpx; httpx.Client"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize("name", ["Sandbox", "Files", "Process", "Template", "Volume", "Watch"])
def test_every_public_method_has_its_sync_twin(name: str) -> None:
    ours, theirs = getattr(aenv.sdk, name), getattr(aenv.sdk, f"Async{name}")
    public = {n for n, _ in inspect.getmembers(theirs) if not n.startswith("_")}
    assert public <= set(dir(ours))
    for method in public:
        assert not inspect.iscoroutinefunction(getattr(ours, method))


def test_commands_files_and_listings(plane: ControlPlane, sandbox: Sandbox) -> None:
    assert sandbox.exec("echo hi").stdout == "hi\n"
    sandbox.files.write("a/b", "text")
    assert sandbox.files.read("a/b") == "text"
    assert [info.id for info in Sandbox.list(url=plane.url, api_key=KEY)] == [sandbox.id]
    assert Sandbox.attach(sandbox.id, url=plane.url, api_key=KEY).exec(["true"]).ok
    assert repr(sandbox) == f"Sandbox({sandbox.id!r}, template='base')"


def test_streams_and_terminals_are_iterators(sandbox: Sandbox) -> None:
    events = list(sandbox.stream("echo x; exit 2"))
    assert events[-1] == Exited(2, "exit status 2", "exit status 2")
    terminal = sandbox.pty(["sh", "-c", "read line; echo got $line"])
    terminal.send_stdin("it\n")
    output = b"".join(getattr(event, "data", b"") for event in terminal.events())
    assert b"got it" in output


def test_a_broken_off_stream_kills_its_command(sandbox: Sandbox) -> None:
    for _ in sandbox.stream("sleep 4721"):
        break
    deadline = time.monotonic() + 10
    while sandbox.exec(["pgrep", "-xf", "sleep 4721"]).ok:
        assert time.monotonic() < deadline


def test_a_callback_may_use_the_sync_sdk_itself(sandbox: Sandbox) -> None:
    heard: list[str] = []
    sandbox.exec("echo outer", on_stdout=lambda text: heard.append(sandbox.exec("echo in").stdout))
    assert heard == ["in\n"]


def test_a_watch_is_an_iterator_and_a_context(sandbox: Sandbox) -> None:
    sandbox.files.make_dir("w")
    with sandbox.files.watch("w") as watch:
        sandbox.files.write("w/f", "1")
        assert next(iter(watch)).name == "f"


def test_many_threads_share_it(sandbox: Sandbox) -> None:
    results: list[str] = []
    threads = [
        threading.Thread(target=lambda i=i: results.append(sandbox.exec(["echo", str(i)]).stdout))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(results) == [f"{i}\n" for i in range(8)]


def test_on_its_own_loop_it_refuses_instead_of_hanging() -> None:
    async def inside() -> None:
        Sandbox.list(url="http://127.0.0.1:1", api_key=KEY)

    with pytest.raises(InvalidRequestError, match="event loop"):
        _loops.run(inside())


def test_an_interrupt_ends_the_source_and_stays_an_interrupt() -> None:
    program = threading.main_thread().ident
    assert program is not None
    ended: list[bool] = []

    async def source() -> AsyncGenerator[int, None]:
        try:
            while sys._current_frames()[program].f_code.co_name != "wait":  # noqa: ASYNC110
                await asyncio.sleep(0.001)
            signal.pthread_kill(program, signal.SIGINT)
            await asyncio.sleep(60)
            yield 1
        finally:
            await asyncio.sleep(0.05)  # as a stream closes its connection
            ended.append(True)

    with pytest.raises(KeyboardInterrupt):
        list(_loops.iterate(source()))
    assert ended == [True]
