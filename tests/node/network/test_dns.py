"""Names in a sandbox, whatever the host's resolver is."""

from __future__ import annotations

import asyncio
import dataclasses
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from aenv.models.egress import Egress
from aenv.models.sandboxes import NetworkPolicy
from aenv.models.settings import EgressSettings, Settings
from aenv.node.network import dns, messages, resolvers
from aenv.node.network.dns import Forwarder
from aenv.node.network.resolvers import Resolvers
from aenv.node.network.slots import SlotPool

from . import lab
from .lab import PUBLIC
from .resolver import ANSWER, Resolver, query, rcode

pytestmark = pytest.mark.root
REFUSED, SERVFAIL, FORMERR = 5, 2, 1


def bound(address: str, kind: int, port: int = 53) -> socket.socket:
    listener = socket.socket(socket.AF_INET, kind)
    listener.bind((address, port))
    if kind == socket.SOCK_STREAM:
        listener.listen()
        listener.setblocking(False)
    return listener


@pytest.fixture
async def resolver(lab: lab.Lab) -> AsyncIterator[Resolver]:
    """The host's resolver, on the loopback only, as systemd-resolved has it."""
    made = Resolver()
    await made.listen(
        bound("127.0.0.53", socket.SOCK_DGRAM), bound("127.0.0.53", socket.SOCK_STREAM)
    )
    yield made
    made.close()


@pytest.fixture
def settings(settings: Settings) -> Settings:
    return dataclasses.replace(settings, egress=EgressSettings(dns_upstreams=("127.0.0.53",)))


async def ask(netns: str, server: str, asked: bytes, port: int = 53) -> bytes | None:
    """The reply a guest gets; None if there is none."""
    with lab.guest_socket(netns, socket.SOCK_DGRAM) as guest:
        guest.connect((server, port))
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(lab.TIMEOUT):
                await loop.sock_sendall(guest, asked)
                return await loop.sock_recv(guest, 4096)
        except OSError:
            return None


async def test_names_come_from_the_hosts_loopback_resolver(
    pool: SlotPool, resolver: Resolver
) -> None:
    slot = await pool.lease("i" + "a" * 19)
    reply = await ask(slot.netns, slot.gateway_ip, query(identity=0xBEEF))
    assert reply is not None
    assert messages.identity(reply) == 0xBEEF
    assert reply.endswith(socket.inet_aton(ANSWER))


async def test_names_come_over_streams_too(pool: SlotPool, resolver: Resolver) -> None:
    slot = await pool.lease("i" + "a" * 19)
    reader, writer = await asyncio.open_connection(
        sock=await lab.connect(slot.netns, slot.gateway_ip, 53)
    )
    for identity in (1, 2):
        asked = query(identity=identity)
        writer.write(len(asked).to_bytes(2, "big") + asked)
        reply = await reader.readexactly(int.from_bytes(await reader.readexactly(2), "big"))
        assert messages.identity(reply) == identity
        assert reply.endswith(socket.inet_aton(ANSWER))
    writer.close()


async def test_a_closed_sandbox_gets_no_names(pool: SlotPool, resolver: Resolver) -> None:
    slot = await pool.lease("i" + "a" * 19)
    await pool.apply(slot, NetworkPolicy(allow_internet=False))
    reply = await ask(slot.netns, slot.gateway_ip, query())
    assert reply is not None
    assert rcode(reply) == REFUSED
    assert resolver.seen == []


async def test_named_servers_answer_instead_and_directly(
    pool: SlotPool, resolver: Resolver, internet: lab.Lab
) -> None:
    named = Resolver()
    await named.listen(
        lab.namespaces.enter(internet.internet, lambda: bound(PUBLIC, socket.SOCK_DGRAM))
    )
    slot = await pool.lease("i" + "a" * 19)
    await pool.apply(slot, NetworkPolicy(allow_internet=False, dns_servers=(PUBLIC,)))
    assert await ask(slot.netns, slot.gateway_ip, query()) is not None
    assert await ask(slot.netns, PUBLIC, query()) is not None
    assert (len(named.seen), len(resolver.seen)) == (2, 0)
    assert not await lab.reaches(slot.netns, PUBLIC, 80)
    named.close()


async def test_others_get_no_answer(pool: SlotPool, resolver: Resolver, internet: lab.Lab) -> None:
    slot = await pool.lease("i" + "a" * 19)
    port = pool.dns_port
    assert await ask(internet.internet, lab.HOST_UPLINK, query(), port) is None
    assert await ask(slot.netns, slot.gateway_ip, query(), port) is None
    assert await ask(slot.netns, lab.HOST_UPLINK, query()) is None
    assert resolver.seen == []


async def test_a_released_slot_is_forgotten(lab: lab.Lab) -> None:
    forwarder = Forwarder(Resolvers(("127.0.0.53",)))
    forwarder.admit("10.93.0.2", Egress())
    forwarder.expel("10.93.0.2")
    assert await forwarder._answer(query(), "10.93.0.2", stream=False) == messages.refusal(
        query(), messages.Rcode.REFUSED
    )


async def test_the_next_server_is_asked_when_one_is_silent(
    lab: lab.Lab, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "_ATTEMPT_TIMEOUT", 0.1)
    silent = Resolver(silent=True)
    await silent.listen(bound("127.0.0.54", socket.SOCK_DGRAM))
    forwarder = Forwarder(Resolvers(("127.0.0.55", "127.0.0.54", "127.0.0.53")))
    forwarder.admit("10.93.0.2", Egress())
    reply = await forwarder._answer(query(), "10.93.0.2", stream=False)
    assert reply.endswith(socket.inet_aton(ANSWER))
    assert len(silent.seen) == 1
    silent.close()


async def test_without_any_server_the_guest_is_told(
    lab: lab.Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "_ATTEMPT_TIMEOUT", 0.05)
    forwarder = Forwarder(Resolvers(("127.0.0.55",)))
    forwarder.admit("10.93.0.2", Egress())
    reply = await forwarder._answer(query(identity=7), "10.93.0.2", stream=False)
    assert (rcode(reply), messages.identity(reply)) == (SERVFAIL, 7)


async def test_one_guest_cannot_take_all_of_the_forwarder(
    lab: lab.Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dns, "_TOTAL_TIMEOUT", 0.3)
    silent = Resolver(silent=True)
    await silent.listen(bound("127.0.0.54", socket.SOCK_DGRAM))
    forwarder = Forwarder(Resolvers(("127.0.0.54",)))
    forwarder.admit("10.93.0.2", Egress())
    flood = [forwarder._answer(query(), "10.93.0.2", stream=False) for _ in range(300)]
    replies = await asyncio.gather(*flood)
    assert all(rcode(reply) == SERVFAIL for reply in replies)
    assert 0 < len(silent.seen) <= 64
    silent.close()


@pytest.mark.parametrize(
    "rubbish",
    [b"", b"\x00" * 11, query()[:-3], b"\x12\x34\x01\x00\x00\x01" + b"\x00" * 6 + b"\xff" * 300],
)
async def test_rubbish_neither_passes_nor_hurts(
    pool: SlotPool, resolver: Resolver, rubbish: bytes
) -> None:
    slot = await pool.lease("i" + "a" * 19)
    reply = await ask(slot.netns, slot.gateway_ip, rubbish)
    assert reply is None or rcode(reply) == FORMERR
    assert resolver.seen == []
    assert await ask(slot.netns, slot.gateway_ip, query()) is not None


def test_a_reply_to_another_question_is_not_taken() -> None:
    reply = Resolver()._reply(query("evil.example"))
    assert not messages.answers(reply, query("example.com"))
    assert messages.answers(reply, query("EVIL.example"))


def test_the_hosts_resolver_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "resolv.conf"
    servers = Resolvers(file=file)
    assert servers.current() == ("127.0.0.1",)
    file.write_text("search lan\nnameserver 127.0.0.53\n# nameserver 1.1.1.1\n")
    assert servers.current() == ("127.0.0.53",)
    replaced = tmp_path / "new"
    replaced.write_text("nameserver fe80::1%eth0\nnameserver 10.0.0.2\nnameserver nonsense\n")
    replaced.replace(file)
    assert servers.current() == ("fe80::1%eth0", "10.0.0.2")
    assert resolvers.parse("") == ("127.0.0.1",)
