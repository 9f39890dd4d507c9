"""Every scenario of ``clients/`` with every published client."""

from __future__ import annotations

import pytest
from tests.e2e.published import ALL, Client
from tests.e2e.servers import LiveServer

_outcomes: dict[str, dict[str, str | None] | AssertionError] = {}


@pytest.fixture
def outcomes(client: Client, server: LiveServer, web: str) -> dict[str, str | None]:
    """All scenarios of a client run once, in one process of it."""
    if client.name not in _outcomes:
        try:
            _outcomes[client.name] = client.run(server, web)
        except AssertionError as error:
            _outcomes[client.name] = error
    found = _outcomes[client.name]
    if isinstance(found, AssertionError):
        raise found
    return found


@pytest.mark.timeout(1000)
@pytest.mark.parametrize(
    ("client", "scenario"),
    [
        pytest.param(client, scenario, id=f"{client.name}-{scenario}")
        for client in ALL
        for scenario in client.scenarios()
    ],
)
def test_scenario(client: Client, scenario: str, outcomes: dict[str, str | None]):
    assert scenario in outcomes, "it did not run"
    if outcomes[scenario] is not None:
        pytest.fail(outcomes[scenario] or "", pytrace=False)
