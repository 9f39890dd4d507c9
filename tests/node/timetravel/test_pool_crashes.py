"""kill -9 of a server with machines that wait: the next one finds nobody, and nothing is left."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.conformance.subjects import Subject
from tests.fakes.waiting import until
from tests.node.timetravel.test_crashes import a_plan, die
from tests.node.timetravel.travel import SMALL, Host, make_node, settings_in

pytestmark = [pytest.mark.gvisor, pytest.mark.root]


@pytest.fixture
async def host(folder: Path, agent_binary: Path) -> AsyncIterator[Host]:
    """A host whose first server runs elsewhere; no trace of any may be left."""
    settings = settings_in(folder)
    host = Host(settings, agent_binary, make_node(settings, agent_binary))
    yield host
    await host.node.close()
    traces = Subject.of("gvisor", folder, agent_binary).instance_traces
    await until(lambda: traces() == [], timeout=15)


@pytest.mark.parametrize("point", ["bake.frozen", "bake.copied", "bake.published"])
async def test_a_bake_is_whole_or_absent(host: Host, point: str) -> None:
    await die(host, a_plan("pool", point=point))

    adoption = await host.begin()

    assert (len(adoption.reaped), adoption.running) == (2, ())  # the guest, and what was baked
    images = [one.manifest.id for one in host.node._makers.bakes.store.all()]
    assert await host.disk_images() == images
    assert len(images) == (1 if point == "bake.published" else 0)
    await host.warm()
    guest = await host.claim()
    assert await guest.sh("echo fine") == "fine"
    await host.node.destroy(guest.spec.sandbox_id)


@pytest.mark.parametrize("point", ["claim.thawed", "claim.told"])
async def test_a_claim_that_was_not_acknowledged_did_not_happen(host: Host, point: str) -> None:
    await die(host, a_plan("claim", point=point))

    adoption = await host.begin()

    assert (len(adoption.reaped), adoption.running, adoption.ended) == (2, (), ())
    assert await host.node.claim("host", SMALL) is None
