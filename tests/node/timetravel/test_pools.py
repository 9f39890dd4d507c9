"""Machines that wait on gVisor: what is made of them is a sandbox like any other, and what dies is
not handed out.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.conformance.subjects import Subject
from tests.fakes.waiting import until
from tests.node.timetravel.serving import SERVING, ServingImages
from tests.node.timetravel.travel import SMALL, Guest, Host, make_node, make_spec, settings_in

from aenv.models.errors import AgentUnreachableError
from aenv.models.sandboxes import NetworkPolicy
from aenv.node.host import open_host

pytestmark = [pytest.mark.gvisor, pytest.mark.root]


@pytest.fixture
async def serving(folder: Path, agent_binary: Path) -> AsyncIterator[Host]:
    """A host whose template has a start command: a program that is asked through files."""
    settings = settings_in(folder)
    images = ServingImages(settings, open_host(settings))
    host = Host(settings, agent_binary, make_node(settings, agent_binary, images))
    await host.node.start(())
    yield host
    await host.node.close()
    await host.begin()
    await host.node.close()
    traces = Subject.of("gvisor", folder, agent_binary).instance_traces
    await until(lambda: traces() == [], timeout=15)


async def asked(guest: Guest) -> dict[str, str]:
    """The answer of the program that the start command started."""
    await guest.sh("touch /tmp/question; until [ -s /tmp/answer ]; do sleep 0.01; done")
    return dict(json.loads(await guest.sh("cat /tmp/answer")))


async def identity(guest: Guest) -> set[str]:
    """What no two sandboxes may share."""
    said = await guest.sh(
        "hostname; cat /etc/machine-id /proc/sys/kernel/random/boot_id; hostname -I"
        " 2>/dev/null || ip -4 -o addr show eth0; head -c 8 /dev/urandom | od -An -tx1"
    )
    return set(said.splitlines())


async def test_what_was_restored_ahead_is_nobodys_twin(serving: Host) -> None:
    await serving.warm(2, SERVING)
    one = await serving.claim(SERVING, env_vars={"MINE": "one"})
    two = await serving.claim(SERVING, env_vars={"MINE": "two"})

    assert one.running.pooled
    assert two.running.pooled
    assert serving.node._makers.pools.report().images == 1
    first, second = await asked(one), await asked(two)
    assert [first["told"], second["told"]] == [
        [["fork", one.spec.sandbox_id]],
        [["fork", two.spec.sandbox_id]],
    ]
    for name in ("urandom", "random", "ssl", "hostname"):
        assert first[name] != second[name], name
    assert first["own"] == second["own"], "a generator that did not ask to be told"
    assert first["started"] == second["started"], "it ran before either of them was made"
    assert not await identity(one) & await identity(two)
    assert await one.sh("hostname; cat /etc/hostname") == "\n".join([one.spec.sandbox_id] * 2)
    assert await one.sh("echo $MINE $E2B_SANDBOX_ID") == f"one {one.spec.sandbox_id}"
    assert await two.sh("cat /root/hooked") == f"fork {two.spec.sandbox_id}"
    assert await one.sh("cat /root/hooked") == f"fork {one.spec.sandbox_id}"


async def test_nobodys_secrets_open_what_was_made_of_it(serving: Host) -> None:
    await serving.warm(1, SERVING)
    pools = serving.node._makers.pools
    (pooled,) = next(iter(pools._shelf._ready.values()))
    old = pooled.waiting.secret
    guest = await serving.claim(SERVING)

    assert old != guest.agent.host_secret
    stranger = make_spec(sandbox_id=guest.spec.sandbox_id, host_secret=old)
    with pytest.raises(AgentUnreachableError, match="HTTP 404"):
        await Guest(stranger, guest.running).agent.logs(after=0, limit=1, wait=0)
    assert (await guest.agent.logs(after=0, limit=10, wait=0)).dropped == 0


async def test_what_was_booted_ahead_is_as_if_booted_now(host: Host) -> None:
    await host.warm(2)
    one = await host.claim(env_vars={"MINE": "one"})
    two = await host.create()

    assert (one.running.pooled, one.running.restored, two.running.pooled) == (True, None, False)
    assert not await identity(one) & await identity(two)
    assert await one.sh("echo $MINE; id -un 1000") == await two.sh("echo one; id -un 1000")


async def test_its_network_rules_hold_from_the_first_moment(host: Host) -> None:
    await host.warm()
    guest = await host.claim(network=NetworkPolicy(allow_internet=False))
    other = await host.create(network=NetworkPolicy(allow_internet=False))

    engine = await host.node._engines.get("gvisor")
    machines = [await engine.adopt(one.spec.sandbox_id) for one in (guest, other)]
    gates = [one._parts.slots._gate.egress(one._slot) for one in machines]  # type: ignore[attr-defined]
    assert gates[0] == gates[1]


async def test_its_limits_are_those_that_were_asked_for(host: Host) -> None:
    odd = replace(SMALL, memory_mb=384, disk_mb=300)
    assert await host.node.claim("host", odd) is None
    await until(lambda: host.waiting() == 1, timeout=60)
    claimed = await host.node.claim("host", odd)
    guest = await host.create(sandbox_id=claimed, resources=odd)

    assert guest.running.pooled
    stats = await (await host.node._engines.get("gvisor")).adopt(guest.spec.sandbox_id)
    assert (await stats.stats()).disk_limit_bytes == 300 * 2**20
    assert int(await guest.sh("awk '/MemTotal/ {print int($2/1024)}' /proc/meminfo")) <= 448


async def test_one_whose_runsc_was_killed_is_not_handed_out(host: Host) -> None:
    await host.warm()
    (pooled,) = next(iter(host.node._makers.pools._shelf._ready.values()))
    kill_runsc(pooled.sandbox_id)
    await until(lambda: host.waiting() == 0)

    guest = await host.create(sandbox_id=await host.node.claim("host", SMALL))
    assert (await guest.sh("echo fine"), guest.running.pooled) == ("fine", False)


async def test_one_whose_runsc_is_killed_when_claimed_is_replaced(host: Host) -> None:
    await host.warm()
    claimed = await host.node.claim("host", SMALL)
    assert claimed is not None
    kill_runsc(claimed)
    guest = await host.create(sandbox_id=claimed)

    assert (await guest.sh("echo fine"), guest.running.pooled) == ("fine", False)
    assert guest.spec.sandbox_id == claimed


async def test_a_burst_of_creates_gets_a_machine_each(host: Host) -> None:
    async def one() -> Guest:
        claimed = await host.node.claim("host", SMALL)
        return await host.create(sandbox_id=claimed)

    await host.warm(3)
    guests = await asyncio.gather(*(one() for _ in range(8)))

    assert len({guest.spec.sandbox_id for guest in guests}) == 8
    assert sum(guest.running.pooled for guest in guests) == 3
    names = await asyncio.gather(*(guest.sh("hostname") for guest in guests))
    assert names == [guest.spec.sandbox_id for guest in guests]


async def test_a_damaged_memory_image_is_baked_anew(serving: Host) -> None:
    await serving.warm(1, SERVING)
    bakes = serving.node._makers.bakes
    (image,) = bakes.store.all()
    await serving.node._makers.pools.relieve()
    pages = image.folder / "memory" / "pages.img"
    os.truncate(pages, pages.stat().st_size // 2)

    guest = await serving.create(template=SERVING)
    assert "pages.img" in (guest.running.note or "")
    assert (await asked(guest))["told"] == []
    serving.node._makers.pools._rest_until = 0.0
    assert await serving.node.claim(SERVING, SMALL) is None
    await until(lambda: serving.waiting() == 1, timeout=60)
    again = await serving.claim(SERVING)
    assert (again.running.note, len(bakes.store.all())) == (None, 1)


async def test_what_is_made_of_one_pauses_resumes_and_outlives_the_server(host: Host) -> None:
    await host.warm()
    guest = await host.claim()
    await guest.start_counter()
    pid, _ = await guest.count()
    adoption = await host.restart(guest.spec)
    assert [one.sandbox_id for one in adoption.running] == [guest.spec.sandbox_id]
    name = "s" + guest.spec.sandbox_id[1:]
    await host.node.pause(guest.spec.sandbox_id, name)
    await host.node.demote(guest.spec.sandbox_id)
    back = await host.resume(guest, name)
    assert (await back.count())[0] == pid


def kill_runsc(sandbox_id: str) -> None:
    """The sandbox process of this machine, and no other."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            words = _words(entry / "cmdline")
            if "boot" in words and sandbox_id in words:
                found.append(int(entry.name))
    assert len(found) == 1, found
    os.kill(found[0], signal.SIGKILL)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(errors="replace").split("\0")
    except OSError:
        return []
