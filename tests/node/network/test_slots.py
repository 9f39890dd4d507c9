"""Slots over their life: made ahead, leased, adopted after a restart, healed, and gone."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aenv.models.errors import CapacityError, ConflictError, EngineError, HostSetupError
from aenv.models.sandboxes import NetworkPolicy
from aenv.models.settings import EgressSettings, Settings
from aenv.node.engine import Severity
from aenv.node.host import Host, open_host
from aenv.node.network.slots import SlotPool

from . import lab
from .conftest import eventually, make_settings, rules
from .lab import OTHER_PUBLIC, PUBLIC, reaches

pytestmark = pytest.mark.root
SANDBOX, OTHER = "i" + "a" * 19, "i" + "b" * 19


@contextlib.asynccontextmanager
async def started(settings: Settings) -> AsyncIterator[SlotPool]:
    """One more server on the same host; cleans up after itself like ``aenv down --kill``."""
    host = open_host(settings)
    pool = SlotPool(settings, host)
    try:
        await pool.start()
        yield pool
        await pool.reap(frozenset())
    finally:
        await pool.close()
        host.close()


async def kill(pool: SlotPool) -> None:
    """End a pool as ``kill -9`` does: nothing is released, the lock goes with the process."""
    for task in (pool._filler, pool._gate._watcher):
        assert task is not None
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await asyncio.gather(*pool._making, return_exceptions=True)
    await pool._names.close()
    pool._registry.close()


async def test_names_fit_the_kernel_and_tell_the_instance(
    pool: SlotPool, settings: Settings
) -> None:
    slot = await pool.lease(SANDBOX)
    assert len(slot.host_interface) <= 15
    assert settings.folders.instance in slot.host_interface
    assert slot.netns == f"aenv-{settings.folders.instance}-{slot.index}"
    assert slot.netns_path.exists()
    assert slot.host_interface in [name for _, name in socket.if_nameindex()]


async def test_a_prepared_slot_is_restored_after_the_engine_took_its_address(
    pool: SlotPool,
) -> None:
    slot = await pool.lease(SANDBOX)
    await pool.prepare(slot)
    lab.ip("-n", slot.netns, "address", "flush", "dev", "eth0")
    lab.ip("-n", slot.netns, "link", "set", "lo", "down")
    assert not await reaches(slot.netns, PUBLIC, 80)
    await pool.prepare(slot)
    await pool.prepare(slot)
    assert await reaches(slot.netns, PUBLIC, 80)
    assert "UP" in lab.ip("-n", slot.netns, "link", "show", "lo")


async def test_a_sandbox_holds_one_slot(pool: SlotPool) -> None:
    await pool.lease(SANDBOX)
    with pytest.raises(ConflictError):
        await pool.lease(SANDBOX)


async def test_release_leaves_nothing_and_may_be_repeated(pool: SlotPool) -> None:
    slot = await pool.lease(SANDBOX)
    await pool.apply(slot, NetworkPolicy(allow_internet=False))
    await pool.release(slot)
    await pool.release(slot)
    assert not slot.netns_path.exists()
    assert slot.host_interface not in [name for _, name in socket.if_nameindex()]
    assert slot.host_interface not in rules()
    assert f"slot_{slot.index} " not in rules()
    assert await pool.adopt(SANDBOX) is None
    with pytest.raises(EngineError, match="ended"):
        await pool.apply(slot, NetworkPolicy())


async def test_a_slot_is_not_used_again_at_once(pool: SlotPool) -> None:
    first = await pool.lease(SANDBOX)
    await pool.release(first)
    assert (await pool.lease(OTHER)).guest_ip != first.guest_ip


async def test_release_forgets_tracked_connections(pool: SlotPool, host: Host) -> None:
    slot = await pool.lease(SANDBOX)
    assert await reaches(slot.netns, PUBLIC, 80)
    await pool.release(slot)
    assert host.links.forget_connections(slot.guest_ip) == 0


async def test_fifty_at_once(pool: SlotPool) -> None:
    names = [f"i{number:019}" for number in range(50)]
    slots = await asyncio.gather(*(pool.lease(name) for name in names))
    assert len({slot.guest_ip for slot in slots}) == 50
    assert all(await asyncio.gather(*(reaches(slot.netns, PUBLIC, 80) for slot in slots[:8])))
    assert await pool.reap(frozenset(names[:1])) == names[1:]


async def test_a_cancelled_lease_is_not_lost(pool: SlotPool, settings: Settings) -> None:
    leases = [asyncio.create_task(pool.lease(f"i{number:019}")) for number in range(6)]
    await asyncio.sleep(0.002)
    for lease in leases:
        lease.cancel()
    await asyncio.gather(*leases, return_exceptions=True)
    await pool.reap(frozenset())  # the fixture then finds nothing left


async def test_a_full_subnet_is_said(internet: lab.Lab, tmp_path: Path) -> None:
    small = dataclasses.replace(make_settings(tmp_path, "small", slots=0), subnet="10.94.0.0/29")
    async with started(small) as pool:
        await pool.lease(SANDBOX)
        await pool.lease(OTHER)
        with pytest.raises(CapacityError, match=r"All 2 network slots of 10\.94\.0\.0/29"):
            await pool.lease("i" + "c" * 19)


async def test_a_restart_adopts_slots_with_their_policies(
    pool: SlotPool, settings: Settings
) -> None:
    slot = await pool.lease(SANDBOX)
    await pool.apply(slot, NetworkPolicy(deny_out=(OTHER_PUBLIC,)))
    doomed = await pool.lease(OTHER)
    with await lab.connect(slot.netns, PUBLIC, 80) as connection:
        await kill(pool)
        async with started(settings) as again:
            assert await again.adopt(SANDBOX) == slot
            assert await lab.echoes(connection)
            assert await reaches(slot.netns, PUBLIC, 80)
            assert not await reaches(slot.netns, OTHER_PUBLIC, 80)
            assert await again.reap(frozenset({SANDBOX})) == [OTHER]
            assert not doomed.netns_path.exists()
            await again.apply(slot, NetworkPolicy())
            assert await reaches(slot.netns, OTHER_PUBLIC, 80)


async def test_rules_hold_while_the_server_is_down(pool: SlotPool, settings: Settings) -> None:
    slot = await pool.lease(SANDBOX)
    await pool.apply(slot, NetworkPolicy(deny_out=(OTHER_PUBLIC,)))
    await kill(pool)
    assert await reaches(slot.netns, PUBLIC, 80)
    assert not await reaches(slot.netns, OTHER_PUBLIC, 80)
    assert not await reaches(slot.netns, lab.PRIVATE, 80)
    async with started(settings):
        pass


async def test_a_clean_close_keeps_what_sandboxes_hold(pool: SlotPool, settings: Settings) -> None:
    slot = await pool.lease(SANDBOX)
    await pool.close()
    assert await reaches(slot.netns, PUBLIC, 80)
    assert not await reaches(slot.netns, lab.PRIVATE, 80)
    async with started(settings) as again:
        assert await again.adopt(SANDBOX) == slot


async def test_what_a_killed_server_left_half_made_is_removed(
    pool: SlotPool, settings: Settings, host: Host
) -> None:
    await kill(pool)
    prefix = settings.folders.instance
    host.links.netns_create(f"aenv-{prefix}-16000")
    async with started(settings):
        assert not host.links.netns_path(f"aenv-{prefix}-16000").exists()


async def test_two_servers_side_by_side(pool: SlotPool, tmp_path: Path) -> None:
    ours = await pool.lease(SANDBOX)
    async with started(make_settings(tmp_path, "second")) as second:
        theirs = await second.lease(SANDBOX)
        assert theirs.guest_ip != ours.guest_ip
        assert await reaches(ours.netns, PUBLIC, 80)
        assert await reaches(theirs.netns, PUBLIC, 80)
        await second.apply(theirs, NetworkPolicy(allow_internet=False))
        assert not await reaches(theirs.netns, PUBLIC, 80)
        assert not await reaches(theirs.netns, ours.gateway_ip, 53)
    assert await reaches(ours.netns, PUBLIC, 80)


async def test_servers_with_other_run_folders_take_other_addresses(
    pool: SlotPool, settings: Settings, tmp_path: Path
) -> None:
    """The registry is one per run folder; the host's routes tell what others hold."""
    ours = await pool.lease(SANDBOX)
    elsewhere = dataclasses.replace(settings.folders, run=tmp_path / "run2", data=tmp_path / "d2")
    async with started(dataclasses.replace(settings, folders=elsewhere)) as second:
        second._wiring._next = ours.index
        theirs = [await second.lease(f"i{number:019}") for number in range(3)]
        assert ours.guest_ip not in [slot.guest_ip for slot in theirs]


async def test_the_table_comes_back_when_somebody_flushes_the_ruleset(
    pool: SlotPool, host: Host
) -> None:
    slot = await pool.lease(SANDBOX)
    await pool.apply(slot, NetworkPolicy(deny_out=(OTHER_PUBLIC,)))
    host.firewall.load("flush ruleset")
    await eventually(lambda: f"slot_{slot.index}" in rules(), within=2)  # told, not polled
    assert await reaches(slot.netns, PUBLIC, 80)
    assert not await reaches(slot.netns, OTHER_PUBLIC, 80)


async def test_a_change_heals_a_flushed_table_at_once(pool: SlotPool, host: Host) -> None:
    slot = await pool.lease(SANDBOX)
    host.firewall.load("flush ruleset")
    await pool.apply(slot, NetworkPolicy(deny_out=(OTHER_PUBLIC,)))
    assert not await reaches(slot.netns, OTHER_PUBLIC, 80)
    assert await reaches(slot.netns, PUBLIC, 80)


async def test_forwarding_is_switched_on_for_slots_only_and_put_back(
    internet: lab.Lab, host: Host, tmp_path: Path
) -> None:
    lab.ip("netns", "add", internet.internet + "-lan")
    try:
        _join_lan(internet.internet + "-lan")
        first, second = make_settings(tmp_path, "one"), make_settings(tmp_path, "two")
        assert not host.kernel.ip_forward()
        async with started(first) as pool:
            slot = await pool.lease(SANDBOX)
            assert await reaches(slot.netns, PUBLIC, 80)
            assert not await reaches(internet.internet + "-lan", PUBLIC, 80)
            async with started(second):
                pass
            assert host.kernel.ip_forward()
        assert not host.kernel.ip_forward()
        host.kernel.set_ip_forward(True)
        assert await reaches(internet.internet + "-lan", PUBLIC, 80)
        async with started(first):
            assert await reaches(internet.internet + "-lan", PUBLIC, 80)
        assert host.kernel.ip_forward()
    finally:
        lab.namespaces.remove(internet.internet + "-lan")


def _join_lan(netns: str) -> None:
    """A neighbour that would use this host as its router (its address is public: no NAT)."""
    lab.ip("link", "add", "lan0", "type", "veth", "peer", "name", "eth0", "netns", netns)
    lab.ip("address", "add", "198.51.101.1/24", "dev", "lan0")
    lab.ip("link", "set", "lan0", "up")
    lab.ip("-n", netns, "address", "add", "198.51.101.2/24", "dev", "eth0")
    lab.ip("-n", netns, "link", "set", "eth0", "up")
    lab.ip("-n", netns, "route", "add", "default", "via", "198.51.101.1")
    router = next(name for name in lab.namespaces.names("aenvtest-") if name + "-lan" == netns)
    lab.ip("-n", router, "route", "add", "198.51.101.0/24", "via", lab.HOST_UPLINK)


async def test_a_subnet_the_host_uses_is_refused_with_a_remedy(
    internet: lab.Lab, settings: Settings, host: Host
) -> None:
    lab.ip("link", "add", "lan0", "type", "bridge")
    lab.ip("address", "add", "10.93.7.1/24", "dev", "lan0")
    lab.ip("link", "set", "lan0", "up")
    pool = SlotPool(settings, host)
    with pytest.raises(HostSetupError, match=r"10\.93\.7\.0/24 on lan0.*Choose another"):
        await pool.start()
    assert Severity.MISSING in [finding.severity for finding in await pool.findings()]


async def test_a_wider_route_of_the_host_is_only_mentioned(
    pool: SlotPool, internet: lab.Lab
) -> None:
    lab.ip("route", "add", "10.0.0.0/8", "via", lab.ROUTER)
    found = [finding for finding in await pool.findings() if finding.severity is Severity.WARNING]
    assert ["10.0.0.0/8" in finding.summary for finding in found] == [True]


async def test_an_opening_the_operator_took_back_closes_its_sandbox(
    internet: lab.Lab, tmp_path: Path
) -> None:
    opened = EgressSettings(private_allow=(f"{lab.PRIVATE}/32",))
    before, after = make_settings(tmp_path, egress=opened), make_settings(tmp_path)
    host = open_host(before)
    pool = SlotPool(before, host)
    await pool.start()
    slot = await pool.lease(SANDBOX)
    await pool.apply(slot, NetworkPolicy(dns_servers=(lab.PRIVATE,)))
    await kill(pool)
    host.close()
    async with started(after) as again:
        assert await again.adopt(SANDBOX) == slot
        assert not await reaches(slot.netns, PUBLIC, 80)


async def test_bridges_of_others_are_forwarded_once_the_operator_says_so(
    internet: lab.Lab, host: Host, tmp_path: Path
) -> None:
    """Docker started after us finds forwarding on and cannot know that it is for slots only."""
    lab.ip("link", "add", "docker0", "type", "bridge")
    lab.ip("netns", "add", internet.internet + "-lan")
    try:
        _join_lan(internet.internet + "-lan")
        async with started(make_settings(tmp_path, "one")) as pool:
            assert not await reaches(internet.internet + "-lan", PUBLIC, 80)
            (found,) = [f for f in await pool.findings() if f.severity is Severity.WARNING]
            assert "docker0" in found.summary
        conceding, _, restart = (found.fix or "").partition("; ")
        assert restart == "aenv down --keep; aenv up"
        await asyncio.to_thread(subprocess.run, ["/bin/sh", "-c", conceding], check=True)
        host.kernel.set_ip_forward(True)
        async with started(make_settings(tmp_path, "one")) as pool:
            slot = await pool.lease(SANDBOX)
            assert await reaches(internet.internet + "-lan", PUBLIC, 80)
            assert await reaches(slot.netns, PUBLIC, 80)
            assert {f.severity for f in await pool.findings()} == {Severity.OK}
        assert host.kernel.ip_forward()
    finally:
        lab.namespaces.remove(internet.internet + "-lan")


async def test_a_failed_start_leaves_the_host_as_it_was(
    internet: lab.Lab, settings: Settings, host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    pool = SlotPool(settings, host)
    with pytest.raises(HostSetupError, match=r"nft is missing.*apt-get install nftables"):
        await pool.start()
    assert Severity.MISSING in [found.severity for found in await pool.findings()]
    await pool.close()
    assert not host.kernel.ip_forward()
