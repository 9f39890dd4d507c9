"""``build`` and ``pull --name``, against the real server over a fake node."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import ARGV, Cli
from tests.fakes.running import Running

DOCKERFILE = """\
FROM base AS one
RUN make

FROM base
ARG WHO=world
COPY src /srv/
COPY --from=one /out /in
RUN echo $WHO
"""


@pytest.fixture
def cli(folders: dict[str, str], tmp_path: Path) -> Iterator[Cli]:
    running = Running(tmp_path / "server")
    env = {**folders, "AENV_SYSTEM_URL": running.url, "AENV_API_KEY": running.key, "TERM": "xterm"}
    (tmp_path / "My App").mkdir()
    yield Cli(env, tmp_path / "My App")
    running.end(signal.SIGKILL)


@pytest.fixture
def context(cli: Cli) -> Path:
    (cli.cwd / "src").mkdir()
    (cli.cwd / "src" / "main.py").write_text("print()\n")
    (cli.cwd / "Dockerfile").write_text(DOCKERFILE)
    return cli.cwd


def lines(stderr: bytes) -> list[str]:
    return stderr.decode().splitlines()


def test_a_dockerfile_becomes_a_template(cli: Cli, context: Path) -> None:
    said = lines(cli.run("build").stderr)
    assert "sending src (0.0 MiB)" in said
    assert "[one 1/1] RUN make" in said
    assert "[builder 3/3] RUN echo $WHO" in said
    assert said[-1] == "template my-app is ready: aenv start my-app"
    assert "my-app" in cli.text("template", "list")
    assert cli.text("start", "my-app", "-d").strip()

    again = lines(cli.run("build", "--build-arg", "WHO=you").stderr)

    assert not [line for line in again if line.startswith("sending")]
    assert "CACHED [one 1/1] RUN make" in again
    assert "CACHED [builder 2/3] COPY /out /in" in again
    assert "[builder 3/3] RUN echo $WHO" in again
    (context / "src" / "main.py").write_text("changed\n")
    changed = lines(cli.run("build", ".", "-n", "other:v1", "--tag", "best").stderr)
    assert "sending src (0.0 MiB)" in changed
    assert changed[-1] == "template other is ready: aenv start other:v1"


def test_a_failed_template_tells_its_step_and_reason(cli: Cli) -> None:
    (cli.cwd / "Dockerfile").write_text("FROM base\nRUN true\nRUN false\n")
    cli.fail("build", "-n", "broken")

    said = "step 2: failed to run command 'false': exit status 1"
    assert said in cli.text("template", "inspect", "broken")
    assert f"broken: error {said}" in cli.fail("template", "watch", "broken")
    assert said in cli.fail("start", "broken", "-d")
    assert "there is no template" in cli.fail("template", "watch", "nobodys")


def test_only_what_is_built_in_is_built_by_name(cli: Cli) -> None:
    assert "base or host" in cli.fail("template", "build", "broken", code=2)


def test_for_machines(cli: Cli, context: Path) -> None:
    done = cli.run("build", "--name", "app", "--json")
    assert json.loads(done.stdout)["tags"] == ["default"]
    logs = [json.loads(line)["log"] for line in lines(done.stderr)]
    assert {"message": "[one 1/1] RUN make", "level": "info", "step": "0/1"} in logs


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("FROM base\nNOPE\n", "Dockerfile:2: there is no instruction 'NOPE'"),
        ("FROM base\n\nCOPY nothing /x\n", "Dockerfile:3: there is nothing of 'nothing'"),
        ("FROM base\nADD src/main.tar /x\n", "Dockerfile:2: there is nothing of"),
        ("FROM base\nFROM missing:1\n", "Dockerfile:2: "),
        ("FROM missing:1 AS a\nRUN x\nFROM base\nCOPY --from=a /x /y\n", "Dockerfile:1: "),
        ("FROM base\nENV A=${B:?say B}\n", "Dockerfile:2: B: say B"),
    ],
)
def test_mistakes_name_file_and_line(cli: Cli, text: str, words: str) -> None:
    (cli.cwd / "Dockerfile").write_text(text)
    assert words in cli.fail("build")


def test_wrong_usage(cli: Cli) -> None:
    assert "cannot be read" in cli.fail("build")
    assert "no folder" in cli.fail("build", "nowhere")
    (cli.cwd / "Dockerfile").write_text("FROM base\n")
    cli.fail("build", "--build-arg", "NOVALUE", code=2)
    assert "no stage" in cli.fail("build", "--target", "x")
    assert "ENTRYPOINT" in cli.fail("build", "--start-cmd", "image")
    assert "template of ours" in cli.fail("build", "--name", "base")


def test_another_file_and_what_it_ignores(cli: Cli, context: Path) -> None:
    (context / "other").write_text("FROM base\nCOPY . /x\n")
    (context / "other.dockerignore").write_text("*\n")
    assert "sending ." in lines(cli.run("build", "-f", "other").stderr)[0]


def test_ctrl_c_ends_the_build_on_the_server(cli: Cli) -> None:
    (cli.cwd / "Dockerfile").write_text("FROM base\nCMD wait\n")
    command = [*ARGV, "build", "--start-cmd", "image", "--ready-cmd", "false"]
    running = subprocess.Popen(command, env=cli.env, cwd=cli.cwd, stderr=subprocess.PIPE)
    assert running.stderr is not None
    for line in running.stderr:
        if b"Waiting for it to be ready" in line:
            break
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert running.returncode == 130
    deadline = time.monotonic() + 20
    while "error" not in cli.text("template", "inspect", "my-app"):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_an_image_becomes_a_template(cli: Cli) -> None:
    said = cli.fail("pull", "missing:1", "--start-cmd", "x", code=2)
    assert "--name" in said
