"""Templates that programs build, against the real server over a fake node."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.running import Running

from aenv import AsyncTemplate, Sandbox, Template
from aenv.models.errors import InvalidRequestError, NotFoundError, TemplateBuildError


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Running]:
    running = Running(tmp_path / "server")
    monkeypatch.setenv("AENV_SYSTEM_URL", running.url)
    monkeypatch.setenv("AENV_API_KEY", running.key)
    yield running
    running.end(signal.SIGKILL)


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "main.py").write_text("print()\n")
    return folder


def test_steps_are_built_and_started(server: Running, context: Path) -> None:
    said: list[str] = []
    template = (
        Template.from_image("base", context=context)
        .env({"PRICE": "5$"})
        .run("make")
        .workdir("/srv")
        .copy("main.py", "app/", owner="app", mode=0o755)
        .user("app")
        .run(["tool", "a b"], user="root")
    )
    built = template.build("mine:v1", tags=["best"], on_log=said.append)
    assert (built.name, built.tags) == ("mine", ("v1", "best"))
    assert "[builder 6/6] RUN tool 'a b'" in said
    assert "sending main.py (0.0 MiB)" in said
    assert Sandbox("mine:best").info().template == built.id

    said.clear()
    template.run("more").build("other", on_log=said.append)
    assert "CACHED [builder 6/7] RUN tool 'a b'" in said
    assert not [line for line in said if line.startswith("sending")]
    said.clear()
    template.build("mine", on_log=said.append)
    assert "[builder 7/7] RUN more" not in said, "a template does not change"

    assert Template.delete("mine")
    assert not Template.delete("mine")
    with pytest.raises(NotFoundError):
        Sandbox("mine:best")


async def test_a_dockerfile(server: Running, context: Path) -> None:
    (context / "Dockerfile").write_text("ARG V=1\nFROM base\nARG V\nRUN make $V\nCMD serve\n")
    template = AsyncTemplate.from_dockerfile(context, build_args={"V": "2"})
    built = await template.run("last").build("mine", start_cmd="image", ready_cmd="up")
    assert built.tags == ("default",)
    (context / "Dockerfile").write_text("NOPE\n")
    with pytest.raises(InvalidRequestError, match="Dockerfile:1"):
        AsyncTemplate.from_dockerfile(context)


async def test_what_fails_says_why(server: Running, context: Path) -> None:
    with pytest.raises(TemplateBuildError, match="missing"):
        await AsyncTemplate.from_image("missing:1").build("mine")
    with pytest.raises(InvalidRequestError, match="nothing of 'nope'"):
        await AsyncTemplate.from_image("base", context=context).copy("nope", "/x").build("mine")
    for wrong in ("../x", "/etc/passwd"):
        with pytest.raises(InvalidRequestError, match="out of the context"):
            AsyncTemplate.from_image("base").copy(wrong, "/x")
    with pytest.raises(InvalidRequestError):
        AsyncTemplate.from_image("base").run(" ")


async def test_a_build_that_is_cancelled_ends_on_the_server(server: Running) -> None:
    ready = asyncio.Event()

    def say(line: str) -> None:
        if "Waiting for it" in line:
            ready.set()

    building = asyncio.create_task(
        AsyncTemplate.from_image("base").build("mine", ready_cmd="false", on_log=say)
    )
    await asyncio.wait_for(ready.wait(), 30)
    building.cancel()
    with pytest.raises(asyncio.CancelledError):
        await building
    with server.client() as http:
        async with asyncio.timeout(20):
            while True:
                (build,) = http.get("/templates/mine").json()["builds"]
                if build["status"] == "error":
                    return
                await asyncio.sleep(0.05)
