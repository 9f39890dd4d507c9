"""Both templates, booted under the real runsc; base is built here if the host has none."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tests.node.images.guests import AS_USER, needs_gvisor, run_in_gvisor

from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.models.templates import TemplateStatus
from aenv.node import runsc
from aenv.node.host import Host, open_host
from aenv.node.images import ImageStore

pytestmark = [pytest.mark.root, pytest.mark.gvisor, needs_gvisor, pytest.mark.timeout(1200)]

TOOLS = "bash python3 python pip git curl sudo ps tput less nano node gcc make ip unzip xz"


@dataclass
class Desk:
    """Templates of the host-wide cache, seen by a server of this test's own."""

    store: ImageStore
    host: Host
    folders: Folders
    scratch: Path
    runsc: Path

    async def run(self, template: str, script: str) -> str:
        image = await self.store.open(template)
        return run_in_gvisor(self.host, self.runsc, image.rootfs, script, self.scratch)


@pytest.fixture
async def desk(tmp_path: Path) -> AsyncIterator[Desk]:
    folders = replace(Folders.resolve(), data=tmp_path / "data", run=tmp_path / "run")
    settings = Settings(folders=folders)
    host = open_host(settings)
    store = ImageStore(settings, host)
    await store.start()
    scratch = tmp_path / "guest"
    scratch.mkdir()
    found = await runsc.find(folders)
    yield Desk(store, host, folders, scratch, found.path)
    await store.close()
    host.close()


@pytest.fixture
async def base(desk: Desk) -> Desk:
    progress = await desk.store.ensure("base", wait=1100)
    assert progress.status is TemplateStatus.READY, progress.error
    return desk


async def test_base_has_its_tools(base: Desk) -> None:
    found = await base.run("base", f"type -P {TOOLS}")

    assert len(found.splitlines()) == len(TOOLS.split())


async def test_base_has_a_user_with_sudo_a_home_utc_and_utf8(base: Desk) -> None:
    encoding = 'python -c "import sys; print(sys.stdout.encoding)"'
    words = f"id -un; sudo -n id -un; cd; pwd; date +%Z; echo $LANG; {encoding}"

    lines = (await base.run("base", f"{AS_USER} bash -lc '{words}'")).splitlines()

    assert lines == ["user", "root", "/home/user", "UTC", "C.UTF-8", "utf-8"]


async def test_base_compiles_commits_and_installs(base: Desk) -> None:
    script = r"""
        cd; mkdir work; cd work
        printf '#include <stdio.h>\nint main(void) { puts("compiled"); }' > hello.c
        make --silent hello; ./hello
        git init --quiet .
        git -c user.name=n -c user.email=e@example.com commit --quiet --allow-empty -m first
        git log --format=%s; test -x "$(git --exec-path)/git-daemon"
        node -e 'console.log("node", 6 * 7)'
        mkdir -p package/pack; touch package/pack/__init__.py
        printf '[project]\nname = "pack"\nversion = "1"\n' > package/pyproject.toml
        pip install --quiet --no-index --no-build-isolation ./package
        python -c 'import pack; print(pack.__file__)'
        python -m venv venv; venv/bin/python -c 'print("venv")'
    """
    lines = (await base.run("base", f"{AS_USER} bash -elc '{_quoted(script)}'")).splitlines()

    assert lines == [
        "compiled",
        "first",
        "node 42",
        "/home/user/.local/lib/python3.11/site-packages/pack/__init__.py",
        "venv",
    ]


async def test_base_imports_from_compiled_files(base: Desk) -> None:
    """Times in the image are those that the ``.pyc`` files name, or every import would compile."""
    script = "python3 -v -c 'import json' 2>&1 | grep -cE '(stale|mtime|wrote)' || true"

    assert (await base.run("base", script)).strip() == "0"


async def test_base_finds_the_guests_aenv_after_everything_else(base: Desk) -> None:
    script = "mkdir -p /.aenv/python && python3 -c 'import sys; print(*sys.path[-2:])'"
    said = await base.run("base", script)
    assert said.split() == ["/usr/lib/python3/dist-packages", "/.aenv/python"]


async def test_base_holds_nothing_of_this_host(base: Desk) -> None:
    script = (
        "cat /etc/apt/sources.list; ls -A /etc/apt/sources.list.d /etc/apt/auth.conf.d; "
        "test ! -e /etc/machine-id; test ! -e /etc/pip.conf; ls -A /root /tmp /var/log/apt; "
        "apt-config dump | grep -c Proxy || true"
    )

    words = (await base.run("base", script)).split()

    record = [word for word in words if "://" in word]
    assert {word.split("/")[2].split(".", 1)[1] for word in record} == {"debian.org"}
    assert words[-1] == "0"


async def test_the_host_template_runs_what_the_host_has(desk: Desk) -> None:
    script = (
        f"cat /etc/hostname; {AS_USER} bash -lc 'id -un; cd; pwd; date +%Z; touch a'; ls -A /root"
    )

    lines = (await desk.run("host", script)).splitlines()

    assert lines == ["sandbox", "user", "/home/user", "UTC", ".bashrc", ".profile"]


async def test_the_host_template_cannot_write_to_the_hosts_usr(desk: Desk) -> None:
    script = "touch /usr/bin/mine 2> /dev/null || echo refused"

    assert await desk.run("host", script) == "refused\n"


def _quoted(script: str) -> str:
    return script.replace("'", "'\\''")
