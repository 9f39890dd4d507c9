"""The requests of rtnetlink(7) that a network slot is made of."""

from __future__ import annotations

import socket
import struct
from ipaddress import IPv4Interface
from typing import NamedTuple

from aenv.node.host.netlink import Flag, attribute, attributes, message, nested

_LINK = struct.Struct("=BxHiII")
_ADDRESS = struct.Struct("=BBBBI")
_ROUTE = struct.Struct("=BBBBBBBBI")
_NEW_LINK, _DELETE_LINK, _GET_LINK, _NEW_ADDRESS, _NEW_ROUTE = 16, 17, 18, 20, 24
_UP = 0x1
_IFLA_IFNAME, _IFLA_LINKINFO, _IFLA_NET_NS_FD = 3, 18, 28
_INFO_KIND, _INFO_DATA, _VETH_PEER = 1, 2, 1
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_RTA_OUTPUT, _RTA_GATEWAY = 4, 5
_TABLE_MAIN, _PROTOCOL_STATIC, _TYPE_UNICAST = 254, 4, 1


class Link(NamedTuple):
    """``kind``: as ``ip link`` names it (veth, bridge …); empty for a physical one."""

    name: str
    kind: str


def add_veth(name: str, peer: str, netns: int) -> bytes:
    """A pair: ``name`` here, ``peer`` in the namespace behind the descriptor ``netns``."""
    other = _link() + _name(peer) + attribute(_IFLA_NET_NS_FD, struct.pack("=I", netns))
    info = nested(
        _IFLA_LINKINFO,
        attribute(_INFO_KIND, b"veth"),
        nested(_INFO_DATA, attribute(_VETH_PEER, other)),
    )
    return message(_NEW_LINK, Flag.CREATE | Flag.EXCL, _link() + _name(name) + info)


def delete_link(index: int) -> bytes:
    return message(_DELETE_LINK, Flag(0), _link(index))


def list_links() -> bytes:
    return message(_GET_LINK, Flag.DUMP, _link())


def read_link(body: bytes) -> Link:
    found = attributes(body[_LINK.size :])
    info = attributes(found.get(_IFLA_LINKINFO, b""))
    return Link(_text(found.get(_IFLA_IFNAME)), _text(info.get(_INFO_KIND)))


def set_up(index: int) -> bytes:
    return message(_NEW_LINK, Flag(0), _link(index, _UP))


def put_address(index: int, address: IPv4Interface) -> bytes:
    """Add the address; one that is there already stays."""
    length = address.network.prefixlen
    body = _ADDRESS.pack(socket.AF_INET, length, 0, 0, index)
    body += attribute(_IFA_LOCAL, address.packed) + attribute(_IFA_ADDRESS, address.packed)
    return message(_NEW_ADDRESS, Flag.CREATE | Flag.REPLACE, body)


def put_default_route(index: int, gateway: str) -> bytes:
    """Add or replace the default route."""
    table, protocol, kind = _TABLE_MAIN, _PROTOCOL_STATIC, _TYPE_UNICAST
    body = _ROUTE.pack(socket.AF_INET, 0, 0, 0, table, protocol, 0, kind, 0)
    body += attribute(_RTA_OUTPUT, struct.pack("=I", index))
    body += attribute(_RTA_GATEWAY, socket.inet_aton(gateway))
    return message(_NEW_ROUTE, Flag.CREATE | Flag.REPLACE, body)


def _link(index: int = 0, flags: int = 0) -> bytes:
    return _LINK.pack(socket.AF_UNSPEC, 0, index, flags, flags)


def _name(name: str) -> bytes:
    return attribute(_IFLA_IFNAME, name.encode() + b"\0")


def _text(value: bytes | None) -> str:
    return (value or b"").rstrip(b"\0").decode()
