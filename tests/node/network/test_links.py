"""Interfaces, addresses, routes and tracked connections; iproute2 is the judge of what we did."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from ipaddress import IPv4Interface
from typing import Any

import pytest

from aenv.node.host import Host
from aenv.node.host.netlink import attribute, attributes

from . import lab as labs

pytestmark = pytest.mark.root
NETNS, VETH = "aenv-linktest-0", "aenvlinktest0"
GATEWAY, GUEST = IPv4Interface("10.99.0.1/30"), IPv4Interface("10.99.0.2/30")


@pytest.fixture
def wired(host: Host) -> Iterator[Host]:
    host.links.netns_create(NETNS)
    try:
        host.links.veth_create(VETH, NETNS, GATEWAY)
        yield host
    finally:
        host.links.veth_remove(VETH)
        host.links.netns_remove(NETNS)


def told(*arguments: str) -> list[dict[str, Any]]:
    answer: list[dict[str, Any]] = json.loads(labs.ip("-j", *arguments))
    return answer


def test_a_pair_joins_the_host_and_the_namespace(wired: Host) -> None:
    [link] = told("-d", "address", "show", "dev", VETH)
    assert link["linkinfo"]["info_kind"] == "veth"
    assert "UP" in link["flags"]
    assert [(a["local"], a["prefixlen"]) for a in link["addr_info"]] == [("10.99.0.1", 30)]
    [guest] = told("-n", NETNS, "address", "show", "dev", "eth0")
    assert "UP" not in guest["flags"]
    assert guest["addr_info"] == []


def test_configuring_a_guest_can_be_repeated(wired: Host) -> None:
    for _ in range(2):
        wired.links.guest_configure(NETNS, GUEST, str(GATEWAY.ip))
    links = {link["ifname"]: link for link in told("-n", NETNS, "address", "show")}
    assert all("UP" in links[name]["flags"] for name in ("lo", "eth0"))
    assert [a["local"] for a in links["eth0"]["addr_info"]] == ["10.99.0.2"]
    [route] = told("-n", NETNS, "route", "show", "default")
    assert (route["gateway"], route["dev"]) == ("10.99.0.1", "eth0")


def test_a_name_that_is_taken_is_an_error(wired: Host) -> None:
    with pytest.raises(OSError, match="File exists"):
        wired.links.veth_create(VETH, NETNS, GATEWAY)


def test_removing_a_pair_can_be_repeated(wired: Host) -> None:
    for _ in range(2):
        wired.links.veth_remove(VETH)
    assert wired.links.veth_list(VETH) == []


def test_bridges_are_told_from_other_interfaces(wired: Host) -> None:
    labs.ip("link", "add", "br-theirs", "type", "bridge")
    assert wired.links.bridges() == ["br-theirs"]


async def test_connections_are_forgotten_one_by_one(wired: Host, internet: labs.Lab) -> None:
    links = wired.links
    links.guest_configure(NETNS, GUEST, str(GATEWAY.ip))
    labs.track_connections()
    await internet.serve(81)
    with contextlib.ExitStack() as stack:
        for port in (80, 81):
            stack.enter_context(await labs.connect(NETNS, str(GATEWAY.ip), port))
        assert links.forget_connections(str(GUEST.ip), lambda peer, port: port == 80) == 1
        assert links.forget_connections(str(GATEWAY.ip)) == 0
        assert links.forget_connections(str(GUEST.ip)) == 1
        assert links.forget_connections(str(GUEST.ip)) == 0


@pytest.mark.parametrize("noise", [b"", b"\1", b"\2\0\1\0", b"\xff\xff\1\0abc"])
def test_a_truncated_answer_costs_only_what_is_cut_off(noise: bytes) -> None:
    assert attributes(attribute(3, b"whole") + noise)[3] == b"whole"
