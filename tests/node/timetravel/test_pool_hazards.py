"""Fork safety of what no caller has forked: two sandboxes of one template whose start command runs
already, from the pool or from the template's memory image. One test per hazard.
"""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass
from typing import Any

import pytest
from tests.node.timetravel.serving import SERVING
from tests.node.timetravel.test_pools import asked, identity, serving
from tests.node.timetravel.travel import Guest, Host

from aenv.models.errors import AgentUnreachableError

__all__ = ["serving"]

pytestmark = [pytest.mark.gvisor, pytest.mark.root]


@dataclass(frozen=True)
class Pair:
    """Two guests, and what the program of each has answered."""

    one: Guest
    two: Guest
    first: dict[str, Any]
    second: dict[str, Any]
    asked_at: float


@pytest.fixture(params=["pool", "memory"])
async def pair(serving: Host, request: pytest.FixtureRequest) -> Pair:
    variables = [
        {"env_vars": {"MINE": name, f"KEY_{name}": "s3cret"}, "secret_env": frozenset({"KEY_one"})}
        for name in ("one", "two")
    ]
    if request.param == "pool":
        await serving.warm(2, SERVING)
        guests = [await serving.claim(SERVING, **each) for each in variables]
    else:
        await serving.warm(1, SERVING)
        await serving.node._makers.pools.relieve()
        guests = [await serving.create(template=SERVING, **each) for each in variables]
    one, two = guests
    assert [one.running.pooled, two.running.pooled] == [request.param == "pool"] * 2
    asked_at = time.time()
    first, second = await asked(one), await asked(two)
    assert (first["started"], first["pid"]) == (second["started"], second["pid"]), "of one memory"
    return Pair(one, two, first, second, asked_at)


async def test_no_hazard_of_forks_is_met_by_two_of_one_template(pair: Pair) -> None:
    """One pair for all: making it takes longer than looking."""
    first, second, one, two = pair.first, pair.second, pair.one, pair.two
    ids = [one.spec.sandbox_id, two.spec.sandbox_id]
    assert [first["told"], second["told"]] == [[["fork", each]] for each in ids]
    for name in ("urandom", "random", "ssl", "uuid1"):
        assert first[name] != second[name], name
    assert first["own"] == second["own"], "a generator that did not ask to be told"
    assert [first["hostname"], second["hostname"]] == ids
    assert [first["file"], second["file"]] == [f"both {each}" for each in ids]
    assert first["called"] == second["called"], "a running process's own environment is not ours"
    assert first["called"] not in ids
    for answer in (first, second):
        assert pair.asked_at - 0.1 < answer["wall"] < time.time() + 0.1
    await _names_and_files(one, two)
    await _variables(one, two)
    await _doors(one, two)
    await _network(one, two)


async def _names_and_files(one: Guest, two: Guest) -> None:
    assert not await identity(one) & await identity(two)
    for guest in (one, two):
        own = guest.spec.sandbox_id
        assert await guest.sh("hostname; cat /etc/hostname") == f"{own}\n{own}"
        assert own in await guest.sh("cat /etc/hosts")
        assert "shared" not in await guest.sh("cat /etc/ssh/ssh_host_* 2>/dev/null; true")
    await one.sh("echo one >> /tmp/file")
    assert [await each.sh("cat /tmp/file") for each in (one, two)] == ["both\none", "both"]


async def _variables(one: Guest, two: Guest) -> None:
    for guest, mine, others in ((one, "one", "two"), (two, "two", "one")):
        told = await guest.sh("env")
        assert f"MINE={mine}" in told
        assert f"KEY_{mine}=s3cret" in told
        assert f"KEY_{others}" not in told
        assert f"E2B_SANDBOX_ID={guest.spec.sandbox_id}" in told
        own, other = guest.spec.sandbox_id, (one, two)[guest is one].spec.sandbox_id
        assert other not in await guest.sh("cat /etc/hosts /etc/hostname; env"), own


async def _doors(one: Guest, two: Guest) -> None:
    """Neither the other's secrets nor its log are here."""
    for guest, other in ((one, two), (two, one)):
        stranger = Guest(other.spec, guest.running).agent
        with pytest.raises(AgentUnreachableError):
            await stranger.run("true", user="root", timeout=5)
        with pytest.raises(AgentUnreachableError):
            await stranger.logs(after=0, limit=1, wait=0)
        lines = (await guest.agent.logs(after=0, limit=100, wait=0)).lines
        assert not [line for line in lines if other.spec.sandbox_id in json.dumps(line.message)]


async def _network(one: Guest, two: Guest) -> None:
    assert one.running.guest_host != two.running.guest_host
    for guest in (one, two):
        reader, writer = await asyncio.open_connection(guest.running.guest_host, 8000)
        assert (await asyncio.wait_for(reader.read(), 10)).decode() == guest.spec.sandbox_id
        writer.close()
