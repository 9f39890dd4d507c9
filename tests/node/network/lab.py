"""A host of its own for one test: a fresh network namespace with an "internet" beyond a router.

The test's thread becomes a member of the new namespace, so the code under test (nft, netlink,
``/proc/sys/net``) sees that host and never the real one. Guests are slots whose sockets are opened
inside the slot's namespace; what they send are real packets.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from aenv.node.host import namespaces

PUBLIC, OTHER_PUBLIC, PRIVATE, METADATA = "93.184.216.34", "1.1.1.1", "10.50.0.1", "169.254.169.254"
HOST_UPLINK, HOST_PUBLIC, ROUTER = "198.51.100.2", "203.0.113.77", "198.51.100.1"
TIMEOUT = 0.6
_IP_MTU = 14

_libc = ctypes.CDLL(None, use_errno=True)


def ip(*arguments: str) -> str:
    return subprocess.run(
        ["ip", *arguments], check=True, capture_output=True, text=True, timeout=10
    ).stdout


@dataclass
class Lab:
    internet: str
    servers: list[asyncio.Server] = field(default_factory=list)

    async def serve(self, port: int, *, address: str = "0.0.0.0", netns: str | None = None) -> None:
        """Answer every connection with the peer's address; on the host, or in ``netns``."""

        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, EOFError):
                writer.write(writer.get_extra_info("peername")[0].encode() + b"\n")
                while line := await reader.readline():
                    writer.write(line)
            writer.close()

        def listen() -> socket.socket:
            listener = socket.create_server((address, port))
            listener.setblocking(False)
            return listener

        listener = listen() if netns is None else namespaces.enter(netns, listen)
        self.servers.append(await asyncio.start_server(answer, sock=listener))

    async def close(self) -> None:
        for server in self.servers:
            server.close()


@contextlib.contextmanager
def entered() -> Iterator[Lab]:
    name = f"aenvtest-{os.getpid()}"
    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    assert _libc.unshare(namespaces.CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
    try:
        Path("/proc/sys/net/ipv4/ip_forward").write_text("0")  # else as the real host has it
        ip("link", "set", "lo", "up")
        ip("address", "add", f"{HOST_PUBLIC}/32", "dev", "lo")
        ip("netns", "add", name)
        ip("link", "add", "up0", "type", "veth", "peer", "name", "eth0", "netns", name)
        ip("address", "add", f"{HOST_UPLINK}/24", "dev", "up0")
        ip("link", "set", "up0", "up")
        ip("route", "add", "default", "via", ROUTER)
        for address in (f"{ROUTER}/24", PUBLIC, OTHER_PUBLIC, PRIVATE, METADATA):
            ip("-n", name, "address", "add", address, "dev", "eth0")
        ip("-n", name, "link", "set", "eth0", "up")
        ip("-n", name, "link", "set", "lo", "up")
        yield Lab(name)
    finally:
        assert _libc.setns(home, namespaces.CLONE_NEWNET) == 0
        os.close(home)
        namespaces.remove(name)


def fragmentation_needed(source: tuple[str, int], target: tuple[str, int], mtu: int) -> bytes:
    """The ICMP error (RFC 792, RFC 1191) about a datagram from ``source`` to ``target``."""
    about = struct.pack(
        "!BBHHHBBH4s4sHHHH",
        *(0x45, 0, 28, 1, 0x4000, 64, socket.IPPROTO_UDP, 0),
        *(socket.inet_aton(source[0]), socket.inet_aton(target[0])),
        *(source[1], target[1], 8, 0),
    )
    body = struct.pack("!HH", 0, mtu) + about
    words = struct.unpack(f"!{len(body) // 2}H", body)
    total = 0x0304 + sum(words)
    total = (total & 0xFFFF) + (total >> 16)
    return struct.pack("!BBH", 3, 4, ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF) + body


def path_mtu(connected: socket.socket) -> int:
    return connected.getsockopt(socket.IPPROTO_IP, _IP_MTU)


def track_connections() -> None:
    """Have this host's kernel track connections, as our own firewall makes it do."""
    chain = "chain in { type filter hook input priority 0; ct state new accept; };"
    subprocess.run(
        ["nft", "-f", "-"],
        input=f"table ip tracked {{ {chain} }}\n",
        text=True,
        check=True,
        timeout=10,
    )


@contextlib.contextmanager
def acting_as(user: int) -> Iterator[None]:
    """The sockets this thread opens and accepts belong to another user of this host."""
    _libc.setfsuid(user)
    try:
        yield
    finally:
        _libc.setfsuid(os.geteuid())


def echo_once(user: int, listener: socket.socket) -> None:
    """Serve one connection as a user of this host would. Blocks."""
    with acting_as(user):
        connection, _ = listener.accept()
    with connection:
        connection.settimeout(TIMEOUT)
        while data := connection.recv(1024):
            connection.sendall(data)


def speak_ipv6(interface: str) -> None:
    Path(f"/proc/sys/net/ipv6/conf/{interface}/disable_ipv6").write_text("0")


def guest_socket(netns: str, kind: int = socket.SOCK_STREAM) -> socket.socket:
    def opened() -> socket.socket:
        opened = socket.socket(socket.AF_INET, kind)
        opened.setblocking(False)
        return opened

    return namespaces.enter(netns, opened)


async def connect(netns: str, address: str, port: int) -> socket.socket:
    """A connection of the guest's; OSError or TimeoutError when it does not come about."""
    connection = guest_socket(netns)
    try:
        async with asyncio.timeout(TIMEOUT):
            await asyncio.get_running_loop().sock_connect(connection, (address, port))
    except BaseException:
        connection.close()
        raise
    return connection


async def reaches(netns: str, address: str, port: int) -> bool:
    """Whether a guest gets an answer from there."""
    try:
        connection = await connect(netns, address, port)
    except OSError:
        return False
    with connection:
        return await echoes(connection)


async def echoes(connection: socket.socket) -> bool:
    """Whether an open connection still carries data both ways."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(TIMEOUT):
            await loop.sock_sendall(connection, b"hello\n")
            received = b""
            while b"hello\n" not in received:
                data = await loop.sock_recv(connection, 1024)
                if not data:
                    return False
                received += data
    except OSError:
        return False
    return True


def leftovers(folder: Path = namespaces.NETNS_FOLDER) -> list[str]:
    """Interfaces of this host and namespaces of any host that bear our names."""
    interfaces = [name for _, name in socket.if_nameindex() if name.startswith("aenv")]
    return interfaces + [path.name for path in folder.glob("aenv-*")]
