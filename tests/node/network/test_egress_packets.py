"""Policies as packets see them: real sockets, a real firewall, in a host of the test's own."""

from __future__ import annotations

import asyncio
import errno
import os
import socket

import pytest

from aenv.models.sandboxes import NetworkPolicy
from aenv.models.settings import EgressSettings, Settings
from aenv.node.host import Host, conntrack
from aenv.node.network.slots import Slot, SlotPool

from . import lab
from .conftest import eventually, make_settings
from .lab import HOST_PUBLIC, HOST_UPLINK, METADATA, OTHER_PUBLIC, PRIVATE, PUBLIC, connect, reaches

pytestmark = pytest.mark.root


@pytest.fixture
async def slot(pool: SlotPool) -> Slot:
    return await pool.lease("i" + "a" * 19)


async def test_the_internet_is_open_and_sees_the_hosts_address(slot: Slot) -> None:
    with await connect(slot.netns, PUBLIC, 80) as connection:
        seen = await asyncio.get_running_loop().sock_recv(connection, 100)
    assert seen.decode().strip() == HOST_UPLINK


@pytest.mark.parametrize("address", [PRIVATE, METADATA, HOST_UPLINK, HOST_PUBLIC, "127.0.0.1"])
async def test_private_metadata_and_host_addresses_are_closed(slot: Slot, address: str) -> None:
    assert not await reaches(slot.netns, address, 80)


async def test_the_gateway_answers_nothing_but_names(slot: Slot) -> None:
    assert not await reaches(slot.netns, slot.gateway_ip, 80)


async def test_a_refusal_is_immediate_rather_than_a_timeout(slot: Slot) -> None:
    with pytest.raises(OSError) as refused:  # noqa: PT011
        await connect(slot.netns, PRIVATE, 80)
    assert refused.value.errno == errno.EHOSTUNREACH


async def test_other_slots_are_closed(pool: SlotPool, slot: Slot, internet: lab.Lab) -> None:
    other = await pool.lease("i" + "b" * 19)
    await internet.serve(80, netns=other.netns)
    assert not await reaches(slot.netns, other.guest_ip, 80)
    assert not await reaches(slot.netns, other.gateway_ip, 80)


async def test_the_host_reaches_the_guest(slot: Slot, internet: lab.Lab) -> None:
    await internet.serve(49983, netns=slot.netns)
    reader, writer = await asyncio.open_connection(slot.guest_ip, 49983)
    assert (await reader.readline()).decode().strip() == slot.gateway_ip
    writer.close()


async def test_other_users_of_the_host_do_not_reach_the_guest(
    slot: Slot, internet: lab.Lab
) -> None:
    await internet.serve(49983, netns=slot.netns)
    for user, errors in ((65534, {errno.EHOSTUNREACH}), (os.geteuid(), {0})):
        with lab.acting_as(user):
            dialing = socket.socket()
        with dialing:
            dialing.settimeout(lab.TIMEOUT)
            assert {dialing.connect_ex((slot.guest_ip, 49983))} == errors


async def test_others_do_not_reach_the_guest(slot: Slot, internet: lab.Lab) -> None:
    await internet.serve(49983, netns=slot.netns)
    lab.ip("-n", internet.internet, "route", "add", "10.93.0.0/16", "via", HOST_UPLINK)
    assert not await reaches(internet.internet, slot.guest_ip, 49983)


async def test_without_internet_only_what_is_allowed_is_open(pool: SlotPool, slot: Slot) -> None:
    await pool.apply(slot, NetworkPolicy(allow_internet=False, allow_out=(f"{PUBLIC}/32",)))
    assert await reaches(slot.netns, PUBLIC, 80)
    assert not await reaches(slot.netns, OTHER_PUBLIC, 80)


async def test_allow_beats_deny(pool: SlotPool, slot: Slot) -> None:
    await pool.apply(slot, NetworkPolicy(deny_out=("0.0.0.0/0",), allow_out=(PUBLIC,)))
    assert await reaches(slot.netns, PUBLIC, 80)
    assert not await reaches(slot.netns, OTHER_PUBLIC, 80)


async def test_deny_closes_a_part_of_the_internet(pool: SlotPool, slot: Slot) -> None:
    await pool.apply(slot, NetworkPolicy(deny_out=("1.0.0.0/8",)))
    assert await reaches(slot.netns, PUBLIC, 80)
    assert not await reaches(slot.netns, OTHER_PUBLIC, 80)


async def test_a_policy_cannot_open_what_is_private(pool: SlotPool, slot: Slot) -> None:
    everything = ("0.0.0.0/0", f"{PRIVATE}/32", f"{METADATA}/32", f"{HOST_UPLINK}/32")
    await pool.apply(slot, NetworkPolicy(allow_out=everything))
    for address in (PRIVATE, METADATA, HOST_UPLINK):
        assert not await reaches(slot.netns, address, 80)


async def test_what_is_opened_for_one_slot_is_open_to_no_other_nor_later(
    pool: SlotPool, slot: Slot
) -> None:
    other = await pool.lease("i" + "b" * 19)
    opened = NetworkPolicy(private_out=(f"{PRIVATE}/32:80", f"{HOST_UPLINK}/32:80"))
    await pool.apply(slot, opened)
    for address in (PRIVATE, HOST_UPLINK):
        assert await reaches(slot.netns, address, 80)
        assert not await reaches(other.netns, address, 80)
    assert not await reaches(slot.netns, METADATA, 80)
    await pool.apply(slot, NetworkPolicy(private_out=(f"{PRIVATE}/32:81",)))
    assert not await reaches(slot.netns, PRIVATE, 80)
    await pool.apply(slot, opened)
    await pool.release(slot)
    again = await pool.lease("i" + "c" * 19)
    assert not await reaches(again.netns, PRIVATE, 80)


async def test_a_change_holds_at_once_for_open_connections(pool: SlotPool, slot: Slot) -> None:
    with (
        await connect(slot.netns, PUBLIC, 80) as kept,
        await connect(slot.netns, OTHER_PUBLIC, 80) as cut,
    ):
        assert await lab.echoes(kept)
        assert await lab.echoes(cut)
        await pool.apply(slot, NetworkPolicy(deny_out=(OTHER_PUBLIC,)))
        assert await lab.echoes(kept)
        assert not await lab.echoes(cut)
    await pool.apply(slot, NetworkPolicy())
    assert await reaches(slot.netns, OTHER_PUBLIC, 80)


async def test_one_slots_policy_leaves_the_others_alone(pool: SlotPool, slot: Slot) -> None:
    other = await pool.lease("i" + "b" * 19)
    await pool.apply(slot, NetworkPolicy(allow_internet=False))
    assert not await reaches(slot.netns, PUBLIC, 80)
    assert await reaches(other.netns, PUBLIC, 80)


async def test_a_spoofed_source_is_dropped(pool: SlotPool, slot: Slot, internet: lab.Lab) -> None:
    other = await pool.lease("i" + "b" * 19)
    listener = lab.guest_socket(internet.internet, socket.SOCK_DGRAM)
    listener.bind((PUBLIC, 5000))
    honest = lab.guest_socket(slot.netns, socket.SOCK_DGRAM)
    lab.ip("-n", slot.netns, "address", "add", f"{other.guest_ip}/32", "dev", "eth0")
    liar = lab.guest_socket(slot.netns, socket.SOCK_DGRAM)
    liar.bind((other.guest_ip, 0))
    with listener, honest, liar:
        liar.sendto(b"spoofed", (PUBLIC, 5000))
        honest.sendto(b"honest", (PUBLIC, 5000))
        async with asyncio.timeout(2):
            first = await asyncio.get_running_loop().sock_recv(listener, 100)
    assert first == b"honest"


async def test_ipv6_is_dropped(pool: SlotPool, slot: Slot, host: Host) -> None:
    """Even when guest and host both speak it on the veth: then only the firewall stands between."""
    lab.speak_ipv6(slot.host_interface)
    lab.namespaces.enter(slot.netns, lambda: lab.speak_ipv6("eth0"))
    lab.ip("address", "add", "fd00::1/64", "dev", slot.host_interface, "nodad")
    lab.ip("-n", slot.netns, "address", "add", "fd00::2/64", "dev", "eth0", "nodad")

    def dial() -> int:
        with socket.socket(socket.AF_INET6) as sender:
            sender.settimeout(lab.TIMEOUT)
            return sender.connect_ex(("fd00::1", 80))

    with socket.create_server(("fd00::1", 80), family=socket.AF_INET6):
        assert lab.namespaces.enter(slot.netns, dial) != 0
        host.firewall.load("delete table " + pool.table_name)
        assert lab.namespaces.enter(slot.netns, dial) == 0


async def test_the_operator_opens_private_targets(
    internet: lab.Lab, host: Host, settings: Settings
) -> None:
    await internet.serve(81, netns=internet.internet)
    opened = EgressSettings(
        private_allow=(f"{PRIVATE}/32:80", f"{HOST_PUBLIC}/32:80", "10.0.0.0/8:1")
    )
    pool = SlotPool(make_settings(settings.folders.data.parent, "operator", egress=opened), host)
    await pool.start()
    try:
        slot = await pool.lease("i" + "a" * 19)
        assert await reaches(slot.netns, PRIVATE, 80)
        assert not await reaches(slot.netns, PRIVATE, 81)
        assert await reaches(slot.netns, HOST_PUBLIC, 80)
        assert not await reaches(slot.netns, HOST_UPLINK, 80)
        await pool.apply(slot, NetworkPolicy(allow_internet=False))
        assert not await reaches(slot.netns, PRIVATE, 80)
        assert not await reaches(slot.netns, HOST_PUBLIC, 80)
        await pool.apply(slot, NetworkPolicy(allow_internet=False, allow_out=(PRIVATE,)))
        assert await reaches(slot.netns, PRIVATE, 80)
    finally:
        await pool.reap(frozenset())
        await pool.close()


async def test_what_another_user_serves_answers_guests_it_was_opened_to(
    internet: lab.Lab, host: Host, settings: Settings
) -> None:
    opened = EgressSettings(private_allow=(f"{HOST_PUBLIC}/32:81",))
    pool = SlotPool(make_settings(settings.folders.data.parent, "operator", egress=opened), host)
    await pool.start()
    try:
        slot = await pool.lease("i" + "a" * 19)
        with socket.create_server((HOST_PUBLIC, 81)) as listener:
            serving = asyncio.create_task(asyncio.to_thread(lab.echo_once, 65534, listener))
            assert await reaches(slot.netns, HOST_PUBLIC, 81)
            await serving
    finally:
        await pool.reap(frozenset())
        await pool.close()


async def test_an_error_about_anothers_connection_is_not_believed(
    slot: Slot, internet: lab.Lab
) -> None:
    """A guest must not shrink the path of the host's own packets by forged ICMP."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as ours:
        ours.connect((PUBLIC, 5000))
        ours.send(b"now it is tracked")
        forged = lab.fragmentation_needed(ours.getsockname(), ours.getpeername(), mtu=600)

        def forge() -> None:
            with socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP) as raw:
                raw.sendto(forged, (HOST_UPLINK, 0))

        lab.namespaces.enter(slot.netns, forge)
        await asyncio.sleep(0.1)
        assert lab.path_mtu(ours) == 1500
        lab.namespaces.enter(internet.internet, forge)  # a router may say so
        await eventually(lambda: lab.path_mtu(ours) == 600, within=2)


async def test_a_flood_of_questions_stops_at_the_firewall(slot: Slot, pool: SlotPool) -> None:
    """Each question of its own port: 4000 at once would be 4000 turns of the server's loop."""
    for _ in range(4000):
        with lab.guest_socket(slot.netns, socket.SOCK_DGRAM) as asker:
            asker.sendto(b"?", (slot.gateway_ip, 53))
    assert 500 < len(list(conntrack.opened_by(slot.guest_ip))) < 2100
