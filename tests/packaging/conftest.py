from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.packaging.wheels import REPOSITORY, RUNSC_PACKAGE, Installation, build, make_environment


@pytest.fixture(scope="session")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("dist")


@pytest.fixture(scope="session")
def wheel(dist: Path) -> Path:
    return build(REPOSITORY, dist, "--wheel")


@pytest.fixture(scope="session")
def sdist(dist: Path) -> Path:
    return build(REPOSITORY, dist, "--sdist")


@pytest.fixture(scope="session")
def runsc_wheel(dist: Path) -> Path:
    return build(RUNSC_PACKAGE, dist, "--wheel")


@pytest.fixture(scope="session")
def venv(wheel: Path, runsc_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("installed")
    return make_environment(root, f"{wheel}[server]", str(runsc_wheel))


@pytest.fixture
def installation(venv: Path, tmp_path: Path) -> Iterator[Installation]:
    installation = Installation(tmp_path, venv)
    yield installation
    installation.aenv("down", "--kill")
    shutil.rmtree(installation.root / "data")
