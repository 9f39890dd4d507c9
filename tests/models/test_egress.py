from __future__ import annotations

from ipaddress import IPv4Address

import pytest

from aenv.models.egress import MAX_ENTRIES, Egress, parse, parse_openings, require_openable
from aenv.models.errors import HostSetupError, InvalidRequestError
from aenv.models.sandboxes import NetworkPolicy


def permits(policy: NetworkPolicy, address: str, port: int = 443, *openings: str) -> bool:
    opened = parse_openings(openings)
    return parse(policy, opened).permits(IPv4Address(address), port, opened)


@pytest.mark.parametrize(
    ("policy", "address", "expected"),
    [
        (NetworkPolicy(), "8.8.8.8", True),
        (NetworkPolicy(), "10.0.0.1", False),
        (NetworkPolicy(), "172.31.255.255", False),
        (NetworkPolicy(), "172.32.0.0", True),
        (NetworkPolicy(), "192.168.1.1", False),
        (NetworkPolicy(), "100.127.0.1", False),
        (NetworkPolicy(), "169.254.169.254", False),
        (NetworkPolicy(), "224.0.0.251", False),
        (NetworkPolicy(), "0.0.0.0", False),
        (NetworkPolicy(), "255.255.255.255", False),
        (NetworkPolicy(allow_out=("10.0.0.0/8",)), "10.0.0.1", False),
        (NetworkPolicy(allow_internet=False), "8.8.8.8", False),
        (NetworkPolicy(allow_internet=False, allow_out=("8.8.8.0/24",)), "8.8.8.8", True),
        (NetworkPolicy(deny_out=("8.0.0.0/8",)), "8.8.8.8", False),
        (NetworkPolicy(deny_out=("0.0.0.0/0",), allow_out=("8.8.8.8",)), "8.8.8.8", True),
        (NetworkPolicy(deny_out=("0.0.0.0/0",), allow_out=("8.8.8.8",)), "8.8.4.4", False),
    ],
)
def test_what_a_policy_permits(policy: NetworkPolicy, address: str, expected: bool) -> None:
    assert permits(policy, address) is expected


def test_only_the_operator_opens_private_targets() -> None:
    assert permits(NetworkPolicy(), "10.1.2.3", 443, "10.1.0.0/16")
    assert permits(NetworkPolicy(), "10.1.2.3", 443, "10.1.2.3/32:443")
    assert not permits(NetworkPolicy(), "10.1.2.3", 80, "10.1.2.3/32:443")
    assert not permits(NetworkPolicy(allow_internet=False), "10.1.2.3", 443, "10.1.0.0/16")
    assert not permits(NetworkPolicy(deny_out=("10.1.2.3",)), "10.1.2.3", 443, "10.1.0.0/16")


def test_named_dns_servers_are_open_for_names_only() -> None:
    policy = NetworkPolicy(allow_internet=False, dns_servers=("9.9.9.9",))
    assert permits(policy, "9.9.9.9", 53)
    assert not permits(policy, "9.9.9.9", 443)


@pytest.mark.parametrize(
    ("policy", "resolves"),
    [
        (NetworkPolicy(), True),
        (NetworkPolicy(deny_out=("8.0.0.0/8",)), True),
        (NetworkPolicy(allow_internet=False), False),
        (NetworkPolicy(deny_out=("0.0.0.0/1", "128.0.0.0/1")), False),
        (NetworkPolicy(allow_internet=False, dns_servers=("9.9.9.9",)), True),
    ],
)
def test_names_are_no_way_out_of_a_closed_sandbox(policy: NetworkPolicy, resolves: bool) -> None:
    assert parse(policy).resolves_names is resolves


@pytest.mark.parametrize(
    ("policy", "field", "said"),
    [
        (NetworkPolicy(allow_out=("example.com",)), "allowOut", "host name"),
        (NetworkPolicy(allow_out=("*.example.com",)), "allowOut", "host name"),
        (NetworkPolicy(deny_out=("2001:db8::/32",)), "denyOut", "IPv6"),
        (NetworkPolicy(deny_out=("1.2.3.4:80",)), "denyOut", "port"),
        (NetworkPolicy(allow_out=("1.2.3.4/33",)), "allowOut", "no IPv4 address or CIDR"),
        (NetworkPolicy(allow_out=("",)), "allowOut", "no IPv4 address or CIDR"),
        (NetworkPolicy(allow_out=("1.2.3.4",) * (MAX_ENTRIES + 1)), "allowOut", "at most"),
        (NetworkPolicy(dns_servers=("dns.google",)), "dnsServers", "host name"),
        (NetworkPolicy(dns_servers=("10.0.0.2",)), "dnsServers", "only the operator"),
        (NetworkPolicy(dns_servers=("8.8.8.0/24",)), "dnsServers", "no IPv4 address"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_field(
    policy: NetworkPolicy, field: str, said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"network.{field}.*{said}"):
        parse(policy)


def test_overlapping_entries_become_disjoint() -> None:
    egress = parse(NetworkPolicy(deny_out=("8.8.8.8", "8.0.0.0/8", "8.8.8.8", "9.0.0.1/8")))
    assert [str(network) for network in egress.deny] == ["8.0.0.0/7"]
    assert not egress.is_default
    assert parse(NetworkPolicy()) == Egress()


@pytest.mark.parametrize("entry", ["mirror.local", "10.0.0.0/8:0", "10.0.0.0/8:x", "10.0.0.0/40"])
def test_a_wrong_opening_is_named(entry: str) -> None:
    with pytest.raises(HostSetupError, match=entry):
        parse_openings([entry])


def test_a_private_target_that_stays_closed_is_refused_rather_than_ignored() -> None:
    asked = parse(NetworkPolicy(allow_out=("203.0.113.0/24", "10.1.2.0/24")))
    with pytest.raises(InvalidRequestError, match=r"allowOut: '10\.1\.2\.0/24' is private"):
        require_openable(asked, ())
    require_openable(asked, parse_openings(["10.1.2.3/32:443"]))
    require_openable(parse(NetworkPolicy(allow_out=("0.0.0.0/0",))), ())
