"""Namespaces, veth pairs, addresses, routes and tracked connections over netlink.

What happens inside a guest's namespace goes through a socket opened there, all requests in one
message.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path

from aenv.node.host import conntrack, namespaces, rtnetlink
from aenv.node.host.netlink import Family, dump, exchange
from aenv.node.host.port import Links, Route

_GUEST_INTERFACE = "eth0"
_LOOPBACK = 1
# strict source check, answer ARP only for the slot's own gateway address, no redirects
_HARDENING = {
    "rp_filter": "1",
    "arp_ignore": "1",
    "arp_announce": "2",
    "accept_redirects": "0",
    "send_redirects": "0",
    "accept_source_route": "0",
    "proxy_arp": "0",
    "forwarding": "1",
}


class RootLinks(Links):
    def netns_path(self, name: str) -> Path:
        return namespaces.NETNS_FOLDER / name

    def netns_create(self, name: str) -> None:
        namespaces.create(name, _disable_ipv6)

    def netns_remove(self, name: str) -> None:
        namespaces.remove(name)

    def netns_list(self, prefix: str) -> list[str]:
        return namespaces.names(prefix)

    def veth_create(self, name: str, netns: str, address: IPv4Interface) -> None:
        fd = os.open(self.netns_path(netns), os.O_RDONLY | os.O_CLOEXEC)
        try:
            _send(rtnetlink.add_veth(name, _GUEST_INTERFACE, fd))
        finally:
            os.close(fd)
        index = socket.if_nametoindex(name)
        _harden(name)
        _send(rtnetlink.put_address(index, address), rtnetlink.set_up(index))

    def veth_remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            _send(rtnetlink.delete_link(socket.if_nametoindex(name)))

    def veth_list(self, prefix: str) -> list[str]:
        return sorted(name for _, name in socket.if_nameindex() if name.startswith(prefix))

    def bridges(self) -> list[str]:
        links = map(rtnetlink.read_link, dump(Family.ROUTE, rtnetlink.list_links()))
        return sorted(link.name for link in links if link.kind == "bridge")

    def guest_configure(self, netns: str, address: IPv4Interface, gateway: str) -> None:
        def inside() -> None:
            index = socket.if_nametoindex(_GUEST_INTERFACE)
            _send(
                rtnetlink.set_up(_LOOPBACK),
                rtnetlink.set_up(index),
                rtnetlink.put_address(index, address),
                rtnetlink.put_default_route(index, gateway),
            )

        namespaces.enter(netns, inside)

    def routes(self) -> list[Route]:
        lines = Path("/proc/thread-self/net/route").read_text().splitlines()[1:]
        return [route for line in lines if (route := _route(line)).network.prefixlen]

    def forget_connections(self, guest: str, keep: Callable[[str, int], bool] | None = None) -> int:
        dropped = 0
        for connection in list(conntrack.opened_by(guest)):
            if keep is not None and keep(connection.peer, connection.port):
                continue
            with contextlib.suppress(FileNotFoundError):  # it has ended meanwhile
                conntrack.drop(connection)
                dropped += 1
        return dropped


def _route(line: str) -> Route:
    """Interface, destination, gateway, flags, references, use, metric, mask: little-endian hex."""
    words = line.split()
    target, mask = (struct.pack("=I", int(word, 16)) for word in (words[1], words[7]))
    return Route(IPv4Network((target, IPv4Address(mask).exploded)), words[0])


def _harden(interface: str) -> None:
    for switch, value in _HARDENING.items():
        Path(f"/proc/sys/net/ipv4/conf/{interface}/{switch}").write_text(value)
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")


def _disable_ipv6() -> None:
    for name in ("all", "default"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")


def _send(*requests: bytes) -> None:
    exchange(Family.ROUTE, b"".join(requests))
