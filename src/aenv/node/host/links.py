"""Namespaces, veth pairs, addresses, routes and tracked connections over netlink.

pyroute2 encodes the requests; its sockets belong to one thread, so they live in a worker of this
class. What happens inside a guest's namespace goes through a plain socket opened there, all
requests in one message.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import socket
import struct
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any, TypeVar

from aenv.node.host import namespaces
from aenv.node.host.port import Links, Route

Result = TypeVar("Result")

_HEADER = struct.Struct("=IHHII")
_ERROR = 2
_EXCHANGE_TIMEOUT = 5.0
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
    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="aenv-netlink")
        self._sockets: dict[str, Any] = {}

    def close(self) -> None:
        self._in_worker(self._close_sockets)
        self._worker.shutdown()

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
            peer = {"ifname": _GUEST_INTERFACE, "net_ns_fd": fd}
            self._send(lambda batch: batch.link("add", ifname=name, kind="veth", peer=peer))
        finally:
            os.close(fd)
        index = socket.if_nametoindex(name)
        _harden(name)

        def configure(batch: Any) -> None:
            batch.addr("add", index=index, address=str(address.ip), prefixlen=_length(address))
            batch.link("set", index=index, state="up")

        self._send(configure)

    def veth_remove(self, name: str) -> None:
        with contextlib.suppress(OSError):
            index = socket.if_nametoindex(name)
            self._send(lambda batch: batch.link("del", index=index))

    def veth_list(self, prefix: str) -> list[str]:
        return sorted(name for _, name in socket.if_nameindex() if name.startswith(prefix))

    def bridges(self) -> list[str]:
        return self._in_worker(self._bridges)

    def _bridges(self) -> list[str]:
        from pyroute2 import IPRoute

        with IPRoute() as route:
            return sorted(link.get_attr("IFLA_IFNAME") for link in route.get_links(kind="bridge"))

    def guest_configure(self, netns: str, address: IPv4Interface, gateway: str) -> None:
        def inside() -> None:
            index = socket.if_nametoindex(_GUEST_INTERFACE)
            _exchange(self._guest_requests(index, address, gateway))

        namespaces.enter(netns, inside)

    def _guest_requests(self, index: int, address: IPv4Interface, gateway: str) -> bytes:
        def fill(batch: Any) -> None:
            batch.link("set", index=_LOOPBACK, state="up")
            batch.link("set", index=index, state="up")
            batch.addr("replace", index=index, address=str(address.ip), prefixlen=_length(address))
            batch.route("replace", dst="default", gateway=gateway, oif=index)

        return self._encode(fill)

    def routes(self) -> list[Route]:
        """Read from /proc: the server's start needs them, and pyroute2 takes 0.3 s to import."""
        lines = Path("/proc/thread-self/net/route").read_text().splitlines()[1:]
        return [route for line in lines if (route := _route(line)).network.prefixlen]

    def forget_connections(self, guest: str, keep: Callable[[str, int], bool] | None = None) -> int:
        return self._in_worker(functools.partial(self._forget_connections, guest, keep))

    def _forget_connections(self, guest: str, keep: Callable[[str, int], bool] | None) -> int:
        from pyroute2.netlink.nfnetlink.nfctsocket import NFCTAttrTuple, NFCTSocket

        tracker = self._sockets.get("conntrack")
        if tracker is None:
            tracker = self._sockets["conntrack"] = NFCTSocket()
        entries = list(tracker.dump(tuple_orig=NFCTAttrTuple(saddr=guest)))
        origins = [NFCTAttrTuple.from_netlink(socket.AF_INET, _origin(entry)) for entry in entries]
        dropped = 0
        for origin in origins:
            if origin.saddr != guest:
                continue
            if keep is not None and keep(origin.daddr, getattr(origin, "dport", None) or 0):
                continue
            with contextlib.suppress(Exception):  # it may have ended meanwhile
                tracker.entry("del", tuple_orig=origin)
                dropped += 1
        return dropped

    def _send(self, fill: Callable[[Any], None]) -> None:
        _exchange(self._encode(fill))

    def _encode(self, fill: Callable[[Any], None]) -> bytes:
        return self._in_worker(functools.partial(self._encode_here, fill))

    def _encode_here(self, fill: Callable[[Any], None]) -> bytes:
        from pyroute2 import IPBatch

        batch = self._sockets.get("batch")
        if batch is None:
            batch = self._sockets["batch"] = IPBatch()
        batch.reset()
        fill(batch)
        return bytes(batch.asyncore.batch)

    def _close_sockets(self) -> None:
        while self._sockets:
            self._sockets.popitem()[1].close()

    def _in_worker(self, work: Callable[[], Result]) -> Result:
        return self._worker.submit(work).result()


def _length(address: IPv4Interface) -> int:
    return address.network.prefixlen


def _route(line: str) -> Route:
    """Interface, destination, gateway, flags, references, use, metric, mask: little-endian hex."""
    words = line.split()
    target, mask = (struct.pack("=I", int(word, 16)) for word in (words[1], words[7]))
    return Route(IPv4Network((target, IPv4Address(mask).exploded)), words[0])


def _origin(entry: Any) -> Any:
    return entry.get_attr("CTA_TUPLE_ORIG")


def _harden(interface: str) -> None:
    for switch, value in _HARDENING.items():
        Path(f"/proc/sys/net/ipv4/conf/{interface}/{switch}").write_text(value)
    with contextlib.suppress(FileNotFoundError):  # a kernel without IPv6
        Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("1")


def _disable_ipv6() -> None:
    for name in ("all", "default"):
        with contextlib.suppress(FileNotFoundError):
            Path(f"/proc/sys/net/ipv6/conf/{name}/disable_ipv6").write_text("1")


def _exchange(requests: bytes) -> None:
    """Send netlink requests in one message, read the answers; OSError if one is refused."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0) as link:
        link.settimeout(_EXCHANGE_TIMEOUT)
        link.bind((0, 0))
        link.send(requests)
        waiting = _count(requests)
        while waiting:
            answer = link.recv(65536)
            waiting -= _acknowledged(answer)


def _count(messages: bytes) -> int:
    return sum(1 for _ in _split(messages))


def _acknowledged(answer: bytes) -> int:
    count = 0
    for kind, payload in _split(answer):
        if kind == _ERROR:
            count += 1
            code = -struct.unpack_from("=i", payload)[0]
            if code not in (0, errno.EEXIST):
                raise OSError(code, f"netlink: {os.strerror(code)}")
    return count


def _split(messages: bytes) -> list[tuple[int, bytes]]:
    found = []
    offset = 0
    while offset + _HEADER.size <= len(messages):
        length, kind, *_ = _HEADER.unpack_from(messages, offset)
        found.append((kind, messages[offset + _HEADER.size : offset + length]))
        offset += (length + 3) & ~3
    return found
