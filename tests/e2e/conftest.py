"""End to end: a live server on gVisor with the ``base`` template, driven from outside."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.e2e.servers import LiveServer
from tests.e2e.webs import public_web
from tests.e2e.wire import Wire

HERE = Path(__file__).parent
BUILD_TIMEOUT = 1200


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            item.add_marker(pytest.mark.root)
            item.add_marker(pytest.mark.gvisor)


@pytest.fixture(scope="session")
def base_template(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The ``base`` template in the machine's cache, built if it is not there."""
    if os.geteuid() != 0:
        pytest.fail("the end-to-end tests need root; run them as root")
    server = LiveServer(tmp_path_factory.mktemp("build"))
    server.start()
    try:
        server.aenv("template", "build", "base", timeout=BUILD_TIMEOUT)
    finally:
        server.discard()


@pytest.fixture(scope="session")
def server(base_template: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """One server for all tests that do not end it. It must leave nothing."""
    server = LiveServer(tmp_path_factory.mktemp("live"), {"AENV_DEFAULTS_DISK_MB": "512"})
    server.start()
    yield server
    server.discard()


@pytest.fixture
def make_server(base_template: None, tmp_path: Path) -> Iterator[Callable[..., LiveServer]]:
    """Servers of a test's own, not started; taken down at its end, and must leave nothing."""
    made: list[LiveServer] = []

    def make(**settings: str) -> LiveServer:
        server = LiveServer(tmp_path / f"server{len(made)}", settings)
        made.append(server)
        return server

    yield make
    for server in made:
        server.discard()


@pytest.fixture(scope="session")
def wire(server: LiveServer) -> Wire:
    return Wire(server)


@pytest.fixture(scope="session")
def web() -> Iterator[str]:
    with public_web() as url:
        yield url
