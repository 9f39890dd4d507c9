"""Templates built on gVisor: of Dockerfiles, behind the host's registries, and through a kill."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.e2e.servers import REPOSITORY, LiveServer
from tests.e2e.wire import Wire
from tests.fakes import layers
from tests.fakes.registry import Registry, serve

MakeServer = Callable[..., LiveServer]
SIZE = ("--cpu", "1", "--memory", "512")
DOCKERFILE = """\
# syntax=docker/dockerfile:1
FROM base AS build
ARG GREETING="hello there"
WORKDIR /build
COPY src/ .
RUN <<SCRIPT
set -e
echo "$GREETING" > artifact
chmod 640 artifact
SCRIPT
RUN --mount=type=cache,target=/var/cache/mine \\
    # nothing of it is in the image
    echo run >> /var/cache/mine/count && wc -l < /var/cache/mine/count > lines

FROM base
ENV APP_HOME=/app PATH=/app/bin:$PATH
WORKDIR $APP_HOME
COPY --from=build --chown=user /build/artifact /build/lines /build/*.py ./
COPY --chmod=755 <<TOOL bin/tool
#!/bin/sh
echo tool of \\$(id -un)
TOOL
RUN ["tool"]
USER user
ENTRYPOINT ["python3", "-m", "http.server"]
CMD ["8000"]
"""


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "main.py").write_text("print('main')\n")
    (folder / "src" / "main.o").write_text("never sent\n")
    (folder / ".dockerignore").write_text("**/*.o\n")
    (folder / "Dockerfile").write_text(DOCKERFILE)
    return folder


def said(server: LiveServer, *words: str) -> list[str]:
    return server.told(*words).splitlines()


def test_a_dockerfile_is_built_and_served(server: LiveServer, context: Path):
    serve = ("--start-cmd", "image", "--ready-cmd", "curl -fs localhost:8000/main.py")
    lines = said(server, "build", str(context), "-n", "served", *SIZE, *serve)
    assert [line for line in lines if line.endswith("[stdout]: tool of root")]
    wire = Wire(server)
    box = wire.create(templateID="served")
    found = wire.run(
        box, "whoami; pwd; tool; stat -c %U:%a artifact; cat artifact lines; ls /var/cache"
    )
    assert found.stdout.splitlines()[:6] == [
        *("user", "/app", "tool of user", "user:640", "hello there", "1")
    ]
    assert "mine" not in found.stdout.splitlines()[6:]
    assert wire.run(box, "curl -s localhost:8000/main.py").stdout == "print('main')\n"
    assert wire.run(box, "ls").stdout.split() == ["artifact", "bin", "lines", "main.py"]
    wire.delete(box)

    again = ("build", str(context), "-n", "served:two", *SIZE, "--build-arg", "GREETING=salut")
    lines = said(server, *again)
    assert "CACHED [build 2/4] COPY src ." in lines
    box = wire.create(templateID="served:two")
    assert wire.run(box, "cat artifact lines").stdout == "salut\n2\n", "the cache went along"
    wire.delete(box)


def test_steps_reach_the_registries_of_the_host(server: LiveServer, tmp_path: Path):
    (tmp_path / "Dockerfile").write_text(
        "FROM base\n"
        "RUN pip install --break-system-packages --no-deps --target /opt/lib iniconfig\n"
        "RUN apt-get update && apt-get install -y --no-install-recommends tree\n"
        "RUN node -e \"fetch('https://registry.npmjs.org/is-odd/3.0.1')"
        '.then(r => r.json()).then(j => console.log(j.name))" | grep is-odd\n'
        "RUN env | grep aenv-build && ls /dev/shm/aenv-build\n"
    )
    server.aenv("build", str(tmp_path), "-n", "packages", *SIZE, timeout=600)
    wire = Wire(server)
    box = wire.create(templateID="packages")
    found = wire.run(box, "ls /opt/lib; tree --version; env; ls -A /dev/shm")
    assert "iniconfig" in found.stdout
    assert "tree v" in found.stdout
    assert "aenv-build" not in found.stdout
    wire.delete(box)


def test_a_server_killed_in_a_build_loses_nothing_that_was_done(
    make_server: MakeServer, tmp_path: Path
):
    (tmp_path / "Dockerfile").write_text(
        "FROM base\nRUN echo first > /first\nRUN echo second; sleep 600\n"
    )
    server = make_server()
    server.start()
    building = subprocess.Popen(
        [sys.executable, "-m", "aenv.cli.main", "build", str(tmp_path), "-n", "app", *SIZE],
        env=server.env,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert building.stderr is not None
    for line in building.stderr:
        if line.strip().endswith("[stdout]: second"):
            break
    server.kill()
    server.start()
    building.communicate(timeout=60)
    assert building.returncode == 1

    wire = Wire(server)
    builds = wire.http.get("/templates/app").json()["builds"]
    assert [one["status"] for one in builds] == ["error"]
    path = f"/templates/app/builds/{builds[0]['buildID']}/status"
    assert "stopped during the build" in wire.http.get(path).json()["reason"]["message"]
    assert wire.http.get("/snapshots").json() == []
    (tmp_path / "Dockerfile").write_text("FROM base\nRUN echo first > /first\nRUN cat /first\n")
    lines = said(server, "build", str(tmp_path), "-n", "app", *SIZE)
    assert "CACHED [builder 1/2] RUN echo first > /first" in lines
    assert "[builder 2/2] [stdout]: first" in lines


def test_ctrl_c_ends_the_build_and_its_sandbox(server: LiveServer, tmp_path: Path):
    (tmp_path / "Dockerfile").write_text("FROM base\nRUN echo now; sleep 600\n")
    building = subprocess.Popen(
        [sys.executable, "-m", "aenv.cli.main", "build", str(tmp_path), "-n", "stopped", *SIZE],
        env=server.env,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert building.stderr is not None
    for line in building.stderr:
        if line.strip().endswith("[stdout]: now"):
            break
    building.send_signal(signal.SIGINT)
    building.communicate(timeout=60)
    assert building.returncode == 130
    wire = Wire(server)
    (build,) = wire.http.get("/templates/stopped").json()["builds"]
    path = f"/templates/stopped/builds/{build['buildID']}/status"
    assert wire.http.get(path).json()["reason"]["message"] == "the build was cancelled"


def test_a_template_whose_memory_is_damaged_boots_and_starts_again(
    make_server: MakeServer, tmp_path: Path
):
    (tmp_path / "Dockerfile").write_text("FROM base\nENV COLOUR=red\nWORKDIR /srv\nUSER user\n")
    server = make_server()
    server.start()
    start = ("--start-cmd", "echo $COLOUR > /tmp/colour; exec sleep 4321")
    ready = ("--ready-cmd", "test -s /tmp/colour")
    server.aenv("build", str(tmp_path), "-n", "app", *SIZE, *start, *ready)
    memory = (server.folder / "data" / "snapshots").glob("*/memory/**/*")
    damaged = [path for path in memory if path.is_file() and path.stat().st_size > 4096]
    assert damaged
    for path in damaged:
        path.write_bytes(path.read_bytes()[:-4096])
    wire = Wire(server)
    box = wire.create(templateID="app")
    detail = wire.detail(box).json()
    assert detail["restored"] == "disk", detail
    assert "booted from its disk" in detail["note"]
    found = wire.run(
        box, "pgrep -fx 'sleep 4321' >/dev/null && echo runs; whoami; pwd; echo $COLOUR"
    )
    assert found.stdout.split() == ["runs", "user", "/srv", "red"]
    assert json.loads(server.aenv("ls", "--json"))


def test_a_private_image_without_a_shell_is_built_on(server: LiveServer, tmp_path: Path):
    """The agent's own binary is all there is in it: no shell, no accounts, no tar."""
    program = (REPOSITORY / "src" / "aenv" / "_bin" / "agent").read_bytes()
    config = {"Env": ["COLOUR=red"], "WorkingDir": "/work"}
    image = layers.image(layers.archive(layers.entry("tool", program, mode=0o755)), config=config)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("a\n")
    with serve(Registry(login=("me", "word"), basic=True)) as registry:
        name = registry.push(f"team/bare-{server.port}:1", image)
        script = (
            "import sys\nfrom e2b import Template\n"
            f"t = Template(file_context_path={str(tmp_path)!r})"
            ".from_image(sys.argv[1], username='me', password=sys.argv[2])"
            ".copy('data', '/srv/data')\n"
            "Template.build(t, 'bare', cpu_count=1, memory_mb=256)\n"
        )

        def build(password: str) -> subprocess.CompletedProcess[str]:
            python = str(REPOSITORY / ".venvs" / "e2b-2.63.0" / "bin" / "python")
            words = [python, "-c", script, name, password]
            return subprocess.run(
                words, env=server.client_env, capture_output=True, text=True, timeout=300
            )

        refused = build("wrong")
        assert refused.returncode == 1
        assert "BuildException" in refused.stderr
        built = build("word")
        assert built.returncode == 0, built.stderr
    wire = Wire(server)
    box = wire.create(templateID="bare")
    listed = wire.rpc(box, "/filesystem.Filesystem/ListDir", b'{"path": "/srv/data"}').json()
    assert [(e["name"], e["owner"]) for e in listed["entries"]] == [("a.txt", "user")]
    home = wire.rpc(box, "/filesystem.Filesystem/Stat", b'{"path": "/home/user"}').json()["entry"]
    assert home["owner"] == "user"
    wire.delete(box)
    assert b"word" not in Path(server.log).read_bytes()
    server.aenv("template", "delete", "bare", "-y")
    server.aenv("template", "delete", name, "-y")
