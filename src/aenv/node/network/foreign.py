"""Firewalls of others that stop our packets: Docker, ufw, firewalld and their like.

An accept in our table is not final: another table's chain at the same hook still sees the packet,
and its ``policy drop`` (or a closing reject) wins. Such a chain needs a rule of its own for our
interfaces; what we add carries a comment that names this instance, so that exactly that can be
taken back. Our own table still judges every packet.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from aenv.node.engine import Finding, Severity
from aenv.node.host import Firewall
from aenv.node.network.slot import Layout

_HOOKS = ("forward", "input")
_FAMILIES = ("ip", "inet")
_DOCKER = "DOCKER-USER"


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A chain that would drop our packets, and where a rule of ours has to go."""

    family: str
    table: str
    chain: str
    hook: str
    entry: str
    open: bool

    @property
    def name(self) -> str:
        return f"{self.family} {self.table} {self.chain}"


def findings(layout: Layout, firewall: Firewall) -> list[Finding]:
    obstacles = find(layout, firewall.ruleset())
    closed = [obstacle for obstacle in obstacles if not obstacle.open]
    legacy = [_legacy_finding(layout)] if firewall.has_legacy_rules() else []
    if not closed:
        return legacy or [Finding("firewall", Severity.OK, "no other firewall stops sandboxes")]
    return legacy + [
        Finding(
            "firewall",
            Severity.MISSING,
            f"the chain {obstacle.name} (hook {obstacle.hook}) drops packets of sandboxes",
            "; ".join(f"nft '{command}'" for command in commands(layout, obstacle)),
        )
        for obstacle in closed
    ]


def close_for(layout: Layout, firewall: Firewall) -> list[str]:
    """Remove every rule that carries our mark, outside our own table."""
    removed = [
        f"delete rule {rule['family']} {rule['table']} {rule['chain']} handle {rule['handle']}"
        for rule in _of_kind(firewall.ruleset(), "rule")
        if rule.get("comment") == mark(layout)
    ]
    if removed:
        firewall.load("\n".join(removed) + "\n")
    return removed


def _legacy_finding(layout: Layout) -> Finding:
    rule = f"-j ACCEPT -m comment --comment {mark(layout)}"
    return Finding(
        "firewall",
        Severity.WARNING,
        "iptables-legacy filters packets where aenv cannot look; if sandboxes have no network",
        f"iptables-legacy -I FORWARD -i {layout.interface_prefix}+ {rule}; iptables-legacy -I "
        f"FORWARD -o {layout.interface_prefix}+ -m conntrack --ctstate RELATED,ESTABLISHED {rule}; "
        f"iptables-legacy -I INPUT -i {layout.interface_prefix}+ {rule}",
    )


def mark(layout: Layout) -> str:
    return f"aenv:{layout.instance}"


def commands(layout: Layout, obstacle: Obstacle) -> list[str]:
    """The exact rules, as nft takes them."""
    place = f"insert rule {obstacle.family} {obstacle.table} {obstacle.entry}"
    ours = f'"{layout.interface_prefix}*"'
    note = f'comment "{mark(layout)}"'
    rules = [f"{place} iifname {ours} accept {note}"]
    if obstacle.hook == "forward":
        rules.append(f"{place} oifname {ours} ct state established,related accept {note}")
    return rules


def find(layout: Layout, ruleset: Iterable[dict[str, Any]]) -> list[Obstacle]:
    """Base chains of others that end in a drop, with whether our rule is there already."""
    objects = list(ruleset)
    rules = _of_kind(objects, "rule")
    chains = _of_kind(objects, "chain")
    found = []
    for chain in chains:
        if chain.get("hook") not in _HOOKS or chain["family"] not in _FAMILIES:
            continue
        if chain["table"].startswith("aenv_"):
            continue
        if chain.get("policy") == "drop" or _ends_closed(chain, rules):
            found.append(_obstacle(layout, chain, chains, rules))
    return found


def _obstacle(
    layout: Layout,
    chain: dict[str, Any],
    chains: list[dict[str, Any]],
    rules: list[dict[str, Any]],
) -> Obstacle:
    entry = chain["name"]
    if chain["hook"] == "forward" and any(_is_docker(other, chain) for other in chains):
        entry = _DOCKER
    is_open = any(
        rule.get("comment") == mark(layout)
        for rule in rules
        if (rule["family"], rule["table"], rule["chain"])
        == (chain["family"], chain["table"], entry)
    )
    return Obstacle(chain["family"], chain["table"], chain["name"], chain["hook"], entry, is_open)


def _is_docker(chain: dict[str, Any], beside: dict[str, Any]) -> bool:
    """Docker keeps this chain for rules of others and calls it first."""
    return chain["name"] == _DOCKER and (chain["family"], chain["table"]) == (
        beside["family"],
        beside["table"],
    )


def _ends_closed(chain: dict[str, Any], rules: list[dict[str, Any]]) -> bool:
    """firewalld's way: policy accept, but the last rule rejects whatever is left."""
    own = [
        rule
        for rule in rules
        if (rule["family"], rule["table"], rule["chain"])
        == (chain["family"], chain["table"], chain["name"])
    ]
    if not own:
        return False
    verdicts = [statement for statement in own[-1].get("expr", []) if "counter" not in statement]
    return len(verdicts) == 1 and ("reject" in verdicts[0] or "drop" in verdicts[0])


def _of_kind(objects: Iterable[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [entry[kind] for entry in objects if kind in entry]
