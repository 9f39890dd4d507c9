"""The OpenAPI document, and what schemathesis finds with it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from schemathesis import GenerationMode as Mode
from tests.fakes.node import FakeNode
from tests.server.apis import Api, error_of

from aenv.control.system import System, Timing
from aenv.models.folders import Folders
from aenv.models.settings import Settings
from aenv.server.app import create_app, document
from aenv.server.unbuilt import ROUTES


async def test_the_document_names_the_key_and_our_errors(api: Api) -> None:
    document = (await api.client.get("/openapi.json")).json()

    create = document["paths"]["/v2/sandboxes"]["post"]
    assert create["security"] == [{"ApiKey": []}]
    assert {"201", "400", "401", "404", "409", "429", "501", "503"} <= set(create["responses"])
    assert "security" not in document["paths"]["/health"]["get"]
    for operations in document["paths"].values():
        for operation in operations.values():
            assert "422" not in operation["responses"]


async def test_no_route_is_both_served_and_not_built(api: Api) -> None:
    document = (await api.client.get("/openapi.json")).json()
    served = {
        (method.upper(), path) for path, found in document["paths"].items() for method in found
    }
    assert served.isdisjoint({(method, path) for method, path, _ in ROUTES})


class _Loop:
    """The system lives in one loop; schemathesis calls from outside of it."""

    def __init__(self, root: Path) -> None:
        self.loop = asyncio.new_event_loop()
        folders = Folders(root / "d", root / "c", root / "f", root / "r")
        self.system = self.loop.run_until_complete(
            System.open(Settings(folders), FakeNode(), timing=Timing(template_wait=0.01, tick=0.05))
        )
        self.app = create_app(self.system)

    def call(self, case: Any) -> Any:
        import httpx

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://api") as client:
                arguments = case.as_transport_kwargs(base_url="http://api")
                arguments.pop("cookies", None)
                headers = {**dict(arguments.pop("headers")), "X-API-Key": self.system.keys.local}
                return await client.request(**arguments, headers=headers)

        return self.loop.run_until_complete(send())

    def close(self) -> None:
        self.loop.run_until_complete(self.system.close())
        self.loop.close()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_Loop]:
    running = _Loop(tmp_path_factory.mktemp("openapi"))
    yield running
    running.close()


OPERATIONS = [
    found.ok()
    for found in schemathesis.openapi.from_dict(document()).get_all_operations()
    if found.ok().path != "/admin/shutdown"
]


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda found: found.label)
def test_no_input_breaks_a_route(operation: Any, running: _Loop) -> None:
    """Valid and invalid requests, made from the document: documented statuses, JSON errors."""
    documented = {int(status) for status in operation.definition.raw["responses"]}

    @settings(max_examples=10, deadline=None, suppress_health_check=list(HealthCheck))
    @seed(1)
    @given(case=operation.as_strategy() | operation.as_strategy(generation_mode=Mode.NEGATIVE))
    def check(case: Any) -> None:
        reply = running.call(case)
        assert reply.status_code in documented | {404, 405}, reply.text
        assert reply.status_code != 500, reply.text
        if reply.status_code >= 400:
            assert error_of(reply)[0] == reply.status_code

    check()
