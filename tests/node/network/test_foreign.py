"""Other firewalls on the host: seen, opened for our slots on request, and put back as they were."""

from __future__ import annotations

import subprocess

import pytest

from aenv.node.engine import Finding, Severity
from aenv.node.host import Host
from aenv.node.network.slots import SlotPool

from .conftest import rules
from .lab import PUBLIC, reaches

pytestmark = pytest.mark.root

DOCKER = """
table ip filter {
  chain DOCKER-USER { counter return; }
  chain FORWARD { type filter hook forward priority filter; policy drop; jump DOCKER-USER; }
}
"""
UFW = """
table ip filter {
  chain INPUT { type filter hook input priority filter; policy drop; ct state established accept; }
  chain FORWARD { type filter hook forward priority filter; policy drop; }
}
"""
FIREWALLD = """
table inet firewalld {
  chain filter_FORWARD {
    type filter hook forward priority 10; policy accept;
    ct state { established, related } accept
    counter reject with icmpx admin-prohibited
  }
}
"""
HARMLESS = """
table inet filter {
  chain forward { type filter hook forward priority 0; policy accept; ip daddr 6.6.6.6 drop; }
  chain output { type filter hook output priority 0; policy drop; accept; }
}
"""


@pytest.mark.parametrize(
    ("theirs", "where"),
    [(DOCKER, "DOCKER-USER"), (UFW, "ip filter INPUT"), (FIREWALLD, "filter_FORWARD")],
    ids=["docker", "ufw", "firewalld"],
)
async def test_a_firewall_that_stops_sandboxes_is_found_opened_and_put_back(
    pool: SlotPool, host: Host, theirs: str, where: str
) -> None:
    slot = await pool.lease("i" + "a" * 19)
    host.firewall.load(theirs)
    table = " ".join(theirs.split()[:3])
    before = rules(table)
    assert not await reaches(slot.netns, PUBLIC, 80)

    found = [finding for finding in await pool.findings() if finding.topic == "firewall"]
    assert {finding.severity for finding in found} == {Severity.MISSING}
    assert where in " ".join(f"{finding.summary} {finding.fix}" for finding in found)

    mend(found)
    assert await reaches(slot.netns, PUBLIC, 80)
    after = [finding for finding in await pool.findings() if finding.topic == "firewall"]
    assert {finding.severity for finding in after} == {Severity.OK}

    assert len(await pool.unfix()) == sum((finding.fix or "").count("nft ") for finding in found)
    assert await pool.unfix() == []
    assert _without_counters(rules(table)) == _without_counters(before)
    host.firewall.load(f"delete {table}")


async def test_a_firewall_that_lets_us_pass_is_left_alone(pool: SlotPool, host: Host) -> None:
    host.firewall.load(HARMLESS)
    found = [finding for finding in await pool.findings() if finding.topic == "firewall"]
    assert [finding.severity for finding in found] == [Severity.OK]
    host.firewall.load("delete table inet filter")


async def test_opening_a_foreign_firewall_opens_nothing_of_ours(pool: SlotPool, host: Host) -> None:
    slot = await pool.lease("i" + "a" * 19)
    host.firewall.load(DOCKER)
    mend(await pool.findings())
    assert not await reaches(slot.netns, "10.50.0.1", 80)
    await pool.unfix()
    host.firewall.load("delete table ip filter")


def mend(findings: list[Finding]) -> None:
    """What a person does, and ``aenv doctor --fix``: run the commands as printed."""
    for finding in findings:
        if finding.fix and finding.topic == "firewall":
            subprocess.run(["/bin/sh", "-c", finding.fix], check=True)


def _without_counters(text: str) -> list[str]:
    return [line for line in text.splitlines() if "packets" not in line]
