"""The nftables table of one instance, as text. Pure: the same input gives the same script.

Everything that comes from one of our interfaces is judged here, and dropped or refused unless a
rule lets it pass:

* ``arriving`` (before any destination NAT, so that a port the host publishes is no way in): the
  source must be the slot's own; of the host's addresses only the slot's gateway answers, for DNS,
  and so many packets a second: each costs the server's event loop a turn, and the host's table of
  connections an entry;
* ``passing`` (forwarded): private ranges are closed, the rest is judged by the slot's policy, one
  map lookup away, so that replacing a policy is one transaction; to a guest only replies pass;
* ``received`` (to the host): replies, DNS, and what the operator opened.

And what the host sends (``dialing``): a guest's ports are the server's alone to dial, else every
local user could go past the proxy and its tokens.

Policies are judged on every packet, so that a change holds for open connections too.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, collapse_addresses

from aenv.models.egress import PRIVATE, Egress, Opening
from aenv.node.network.slot import INTERFACE_PREFIX, Slot

_REFUSE = "reject with icmp type admin-prohibited"
_PORT = "meta l4proto { tcp, udp } th dport"
_OPENED = "iifname . ip daddr . tcp dport @opened"
_CONNECTIONS_PER_SLOT = 8192
_LOOKUPS_PER_SLOT = 2048
_DNS_PACKETS = "500/second burst 1000 packets"
_HOST_PREFIX = 32


@dataclass(frozen=True, slots=True)
class Table:
    """What all slots share. ``guard``: forward for nobody else (we switched forwarding on)."""

    instance: str
    interface_prefix: str
    subnet: IPv4Network
    dns_port: int
    openings: tuple[Opening, ...] = ()
    guard: bool = False
    owner: int = 0  # the user whose sockets may dial guests

    @property
    def name(self) -> str:
        return f"inet aenv_{self.instance}"

    def load(self, slots: Iterable[tuple[Slot, Egress]]) -> str:
        """Make the whole table, replacing the one there is, in one transaction."""
        parts = [f"table {self.name}", f"delete table {self.name}", self._definition()]
        for slot, egress in slots:
            parts.append(self.admit(slot))
            if not egress.is_default:
                parts.append(self.judge(slot, egress))
        return "\n".join(parts) + "\n"

    def unload(self) -> str:
        return f"table {self.name}\ndelete table {self.name}\n"

    def admit(self, slot: Slot) -> str:
        """Add a slot under the default policy."""
        return "\n".join(
            [
                self._add("guests", f'"{slot.host_interface}" . {slot.guest_ip}'),
                self._add("gateways", f'"{slot.host_interface}" . {slot.gateway_ip}'),
                self._add("addresses", slot.guest_ip),
                self._add("egress", f'"{slot.host_interface}" : accept'),
                "",
            ]
        )

    def expel(self, slot: Slot, egress: Egress) -> str:
        """Remove a slot that was admitted, under the policy it has."""
        lines = [
            self._delete("egress", f'"{slot.host_interface}"'),
            self._delete("addresses", slot.guest_ip),
            self._delete("gateways", f'"{slot.host_interface}" . {slot.gateway_ip}'),
            self._delete("guests", f'"{slot.host_interface}" . {slot.guest_ip}'),
        ]
        if not egress.is_default:
            lines.append(f"delete chain {self.name} {_chain(slot)}")
        lines += [self._delete("opened", element) for element in _opened(slot, egress)]
        return "\n".join(lines) + "\n"

    def judge(self, slot: Slot, egress: Egress, before: Egress | None = None) -> str:
        """Replace the policy of an admitted slot."""
        chain = f"{self.name} {_chain(slot)}"
        verdict = "accept" if egress.is_default else f"goto {_chain(slot)}"
        lines = [self._delete("egress", f'"{slot.host_interface}"')]
        if egress.is_default:
            if before is not None and not before.is_default:
                lines += [f"flush chain {chain}", f"delete chain {chain}"]
        else:
            lines += [f"add chain {chain}", f"flush chain {chain}"]
            lines += [f"add rule {chain} {rule}" for rule in _policy_rules(egress)]
        lines.append(self._add("egress", f'"{slot.host_interface}" : {verdict}'))
        if before is not None:
            lines += [self._delete("opened", element) for element in _opened(slot, before)]
        lines += [self._add("opened", element) for element in _opened(slot, egress)]
        return "\n".join(lines) + "\n"

    def _add(self, container: str, element: str) -> str:
        return f"add element {self.name} {container} {{ {element} }}"

    def _delete(self, container: str, element: str) -> str:
        return f"delete element {self.name} {container} {{ {element} }}"

    def _definition(self) -> str:
        ours = f'"{self.interface_prefix}*"'
        any_slot = f'"{INTERFACE_PREFIX}*"'
        guard = f"iifname != {any_slot} oifname != {any_slot} drop" if self.guard else ""
        private = ", ".join(str(n) for n in collapse_addresses([*PRIVATE, self.subnet]))
        return f"""
table {self.name} {{
  set guests {{ type ifname . ipv4_addr; }}
  set gateways {{ type ifname . ipv4_addr; }}
  set addresses {{ type ipv4_addr; }}
  set opened {{ type ifname . ipv4_addr . inet_service; }}
  set private {{ type ipv4_addr; flags interval; elements = {{ {private} }} }}
  set connections {{ type ipv4_addr; size 65535; flags dynamic; }}
  set lookups {{ type ipv4_addr; size 65535; flags dynamic; }}
  set questions {{ type ipv4_addr; size 65535; timeout 1m; flags dynamic,timeout; }}
  map egress {{ type ifname : verdict; }}

  chain arriving {{
    type filter hook prerouting priority -160; policy accept;
    iifname {ours} goto from_guest
    ip saddr @addresses drop
  }}
  chain from_guest {{
    meta nfproto != ipv4 drop
    iifname . ip saddr != @guests drop
    fib daddr type local goto to_host
    fib daddr type != unicast drop
  }}
  chain to_host {{
    ct state established ct direction reply accept
    meta l4proto icmp ct state related iifname . ct original ip daddr @guests accept
    iifname . ip daddr @gateways {_PORT} 53 goto asking
{_lines(_host_targets(self.openings, "accept"))}
    {_OPENED} accept
    {_REFUSE}
  }}
  chain asking {{
    update @questions {{ ip saddr limit rate over {_DNS_PACKETS} }} drop
    ct state new add @lookups {{ ip saddr ct count over {_LOOKUPS_PER_SLOT} }} drop
    accept
  }}
  chain names {{
    type nat hook prerouting priority dstnat; policy accept;
    iifname . ip daddr @gateways {_PORT} 53 redirect to :{self.dns_port}
  }}
  chain receiving {{
    type filter hook input priority filter; policy accept;
    iifname {ours} goto received
  }}
  chain received {{
    ct state established ct direction reply accept
    meta l4proto icmp ct state related iifname . ct original ip daddr @guests accept
    iifname . ip daddr @gateways {_PORT} {self.dns_port} accept
{_lines(_host_targets(self.openings, "goto judged"))}
    {_OPENED} goto judged
    drop
  }}
  chain dialing {{
    type filter hook output priority filter; policy accept;
    oifname {ours} ct direction original meta skuid != {self.owner} {_REFUSE}
  }}
  chain passing {{
    type filter hook forward priority filter; policy accept;
    iifname {ours} goto leaving
    oifname {ours} goto entering
    {guard}
  }}
  chain leaving {{
    oifname {any_slot} {_REFUSE}
    ip daddr @private jump private_targets
    ct state new add @connections {{ ip saddr ct count over {_CONNECTIONS_PER_SLOT} }} drop
    goto judged
  }}
  chain judged {{
    iifname vmap @egress
    drop
  }}
  chain private_targets {{
{_lines(f"{_target(opening)} return" for opening in self.openings)}
    {_OPENED} return
    {_REFUSE}
  }}
  chain entering {{
    ct state established,related accept
    drop
  }}
  chain masking {{
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr @addresses oifname != {any_slot} masquerade
  }}
}}
"""


def _policy_rules(egress: Egress) -> list[str]:
    rules = []
    if egress.dns_servers:
        servers = _elements(egress.dns_servers)
        rules.append(f"ip daddr {servers} {_PORT} 53 accept")
    if egress.allow:
        rules.append(f"ip daddr {_elements(egress.allow)} accept")
    if egress.deny:
        rules.append(f"ip daddr {_elements(egress.deny)} {_REFUSE}")
    rules.append("accept" if egress.allow_internet else _REFUSE)
    return rules


def _host_targets(openings: Sequence[Opening], verdict: str) -> list[str]:
    """An address of the host is opened only by an entry that names exactly it."""
    return [
        f"{_target(opening)} {verdict}"
        for opening in openings
        if opening.network.prefixlen == _HOST_PREFIX
    ]


def _target(opening: Opening) -> str:
    network = f"ip daddr {opening.network}"
    if opening.port is None:
        return network
    return f"{network} {_PORT} {opening.port}"


def _opened(slot: Slot, egress: Egress) -> list[str]:
    """What a slot alone may reach of the private targets: single addresses, one port each."""
    return sorted(
        {
            f'"{slot.host_interface}" . {opening.network.network_address} . {opening.port}'
            for opening in egress.openings
            if opening.network.prefixlen == _HOST_PREFIX and opening.port is not None
        }
    )


def _elements(networks: Iterable[IPv4Network | IPv4Address]) -> str:
    return "{ " + ", ".join(str(network) for network in networks) + " }"


def _chain(slot: Slot) -> str:
    return f"slot_{slot.index}"


def _lines(rules: Iterable[str]) -> str:
    return "\n".join(f"    {rule}" for rule in rules)
