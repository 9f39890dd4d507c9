"""Where runsc comes from, and what is refused."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from pathlib import Path

import pytest

from aenv.models.errors import HostSetupError
from aenv.models.folders import Folders
from aenv.node.runsc import find, finder, install, pin
from aenv.node.runsc.finder import cached_path


def program(path: Path, version: str, *, body: str = "") -> Path:
    """Something that calls itself runsc."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\necho runsc version {version}; echo spec: 1.2.1\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(*(tmp_path / name for name in ("data", "cache", "config", "run")))


@pytest.fixture
def env(tmp_path: Path) -> Mapping[str, str]:
    return {"PATH": f"{tmp_path / 'path'}:/usr/bin:/bin"}


@pytest.fixture(autouse=True)
def no_wheel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finder, "wheel_path", lambda: None)


async def test_the_pinned_version_on_path_is_found(
    folders: Folders, env: Mapping[str, str], tmp_path: Path
) -> None:
    binary = program(tmp_path / "path/runsc", pin.VERSION)

    found = await find(folders, env)

    assert (found.path, found.version, found.origin) == (binary, pin.VERSION, "PATH")


async def test_the_cache_goes_before_path_and_the_wheel_before_both(
    folders: Folders, env: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program(tmp_path / "path/runsc", pin.VERSION)
    program(cached_path(folders), pin.VERSION)
    assert (await find(folders, env)).origin == "cache"

    wheel = program(tmp_path / "wheel/runsc", pin.VERSION)
    monkeypatch.setattr(finder, "wheel_path", lambda: wheel)
    assert (await find(folders, env)).origin == "wheel"


async def test_other_versions_are_refused_by_name(
    folders: Folders, env: Mapping[str, str], tmp_path: Path
) -> None:
    program(tmp_path / "path/runsc", "20250101")

    with pytest.raises(HostSetupError, match=rf"{pin.VERSION}.*20250101.*aenv setup"):
        await find(folders, env)


async def test_something_that_is_no_runsc_is_refused(
    folders: Folders, env: Mapping[str, str], tmp_path: Path
) -> None:
    impostor = tmp_path / "path/runsc"
    impostor.parent.mkdir()
    impostor.write_text("not a program")
    impostor.chmod(0o755)

    with pytest.raises(HostSetupError, match="not a runsc that starts"):
        await find(folders, env)


async def test_one_that_hangs_is_refused(
    folders: Folders, env: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finder, "_VERSION_TIMEOUT", 0.1)
    program(tmp_path / "path/runsc", pin.VERSION, body="exec sleep 60")

    with pytest.raises(HostSetupError, match="not a runsc that starts"):
        await find(folders, env)


async def test_an_operators_copy_is_installed_when_its_digest_fits(
    folders: Folders, env: Mapping[str, str], tmp_path: Path
) -> None:
    copy = program(tmp_path / "mirror/runsc-x", pin.VERSION)
    digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    steps: list[float] = []

    found = await install(
        folders,
        lambda fraction, step: steps.append(fraction),
        {**env, "AENV_RUNSC_URL": copy.as_uri(), "AENV_RUNSC_SHA256": digest},
    )

    assert found.path == cached_path(folders)
    assert steps[-1] == 1.0
    assert (await find(folders, env)).path == found.path
    assert {path.name for path in found.path.parent.iterdir()} == {"runsc", ".lock"}


@pytest.mark.parametrize(
    ("version", "digest", "words"),
    [
        (pin.VERSION, "0" * 64, "sha256"),
        (pin.VERSION, None, "AENV_RUNSC_SHA256"),
        ("20250101", "right", "20250101"),
    ],
)
async def test_an_operators_copy_that_does_not_fit_is_refused_and_leaves_nothing(
    folders: Folders,
    env: Mapping[str, str],
    tmp_path: Path,
    version: str,
    digest: str | None,
    words: str,
) -> None:
    copy = program(tmp_path / "mirror/runsc-x", version)
    if digest == "right":
        digest = hashlib.sha256(copy.read_bytes()).hexdigest()
    asked = {**env, "AENV_RUNSC_URL": copy.as_uri()}
    if digest:
        asked["AENV_RUNSC_SHA256"] = digest

    with pytest.raises(HostSetupError, match=words):
        await install(folders, env=asked)

    assert {path.name for path in cached_path(folders).parent.iterdir()} == {".lock"}


async def test_an_operators_copy_that_is_not_there_is_said(
    folders: Folders, env: Mapping[str, str], tmp_path: Path
) -> None:
    asked = {
        **env,
        "AENV_RUNSC_URL": (tmp_path / "absent").as_uri(),
        "AENV_RUNSC_SHA256": "0" * 64,
    }

    with pytest.raises(HostSetupError, match="cannot fetch"):
        await install(folders, env=asked)


def fake_go(tmp_path: Path, *, body: str = "") -> Path:
    """A compiler that notes each call and 'builds' a runsc."""
    go = tmp_path / "path/go"
    go.parent.mkdir(exist_ok=True)
    go.write_text(
        f'#!/bin/sh\nexec 3>> {tmp_path}/calls; echo "$@" >&3; echo "$CGO_ENABLED $GOFLAGS" >&3\n'
        f"{body}\nmkdir -p $GOBIN\nprintf '#!/bin/sh\\necho runsc version {pin.VERSION}\\n' "
        "> $GOBIN/runsc\nchmod +x $GOBIN/runsc\n"
    )
    go.chmod(0o755)
    return go


async def test_it_is_built_from_the_pinned_module_once_for_all_callers(
    folders: Folders, env: Mapping[str, str], tmp_path: Path
) -> None:
    fake_go(tmp_path, body="sleep 0.2")

    found = await asyncio.gather(*(install(folders, env=env) for _ in range(4)))

    assert {runsc.path for runsc in found} == {cached_path(folders)}
    arguments, environment = (tmp_path / "calls").read_text().splitlines()
    assert f"gvisor.dev/gvisor/runsc@{pin.MODULE_VERSION}" in arguments
    assert f"version.version={pin.VERSION}" in arguments
    assert environment == "0 -trimpath"


async def test_a_build_that_fails_says_why_and_can_be_tried_again(
    folders: Folders, env: Mapping[str, str], tmp_path: Path
) -> None:
    fake_go(tmp_path, body="echo no route to the proxy >&2; exit 1")
    with pytest.raises(HostSetupError, match="no route to the proxy"):
        await install(folders, env=env)

    fake_go(tmp_path)
    assert (await install(folders, env=env)).origin == "cache"


async def test_a_cancelled_build_leaves_nothing(
    folders: Folders, env: Mapping[str, str], tmp_path: Path
) -> None:
    fake_go(tmp_path, body="exec sleep 60")
    building = asyncio.create_task(install(folders, env=env))
    async with asyncio.timeout(10):
        while not (tmp_path / "calls").exists():  # noqa: ASYNC110  another process writes it
            await asyncio.sleep(0.01)

    building.cancel()
    await asyncio.wait({building})

    assert {path.name for path in cached_path(folders).parent.iterdir()} == {".lock"}
