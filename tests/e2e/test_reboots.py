"""The host restarts under a live server: what its users are told, and what they get back."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from tests.e2e.servers import LiveServer
from tests.e2e.test_crashes import messages, until
from tests.e2e.test_pauses import count, counting, goes_on, post, state
from tests.e2e.wire import Wire
from tests.node.timetravel.reboots import reboot

MakeServer = Callable[..., LiveServer]


def test_a_restart_of_the_host_loses_what_ran_and_nothing_else(make_server: MakeServer):
    server = make_server()
    server.start()
    wire = Wire(server)
    running, paused = counting(wire), counting(wire)
    woken = wire.create(autoPause=True, autoResume={"enabled": True})
    wire.run(woken, "echo kept > kept; sync")
    before = count(wire, paused)
    kept = wire.http.post(f"/sandboxes/{paused.id}/snapshots", json={}).json()["snapshotID"]
    for box in (paused, woken):
        assert post(wire, box, "pause").status_code == 204
    server.kill()
    asyncio.run(reboot(server.folders))

    server.start()

    wire = Wire(server)
    assert wire.detail(running).status_code == 404
    [told] = [one for one in messages(wire, running) if "the sandbox ended" in one]
    assert "restart of the host" in told
    assert state(wire, paused) == "paused"
    assert post(wire, paused, "connect").status_code == 201
    assert wire.detail(paused).json()["restored"] == "warm"
    goes_on(wire, paused, before)
    assert wire.run(woken, "cat kept").stdout == "kept\n"
    child = wire.create(templateID=kept)
    goes_on(wire, child, before)
    until(lambda: wire.ids() == {paused.id, woken.id, child.id})
