"""One slot's names and addresses, all computed from the instance and the index."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path

from aenv.models.errors import HostSetupError

INTERFACE_PREFIX = "aenv"
_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_DIGIT_COUNT = 3
_NUMBERS = 36 * 36 * 36
_SLOT_PREFIX = 30
_SLOT_SIZE = 4


@dataclass(frozen=True, slots=True)
class Slot:
    """One place on the network.

    ``netns`` is the namespace's name, ``host_interface`` the host's end of the veth pair; the
    guest's end is ``eth0`` in the namespace.
    """

    index: int
    netns: str
    netns_path: Path
    guest_ip: str
    gateway_ip: str
    prefix_length: int
    host_interface: str

    @property
    def guest(self) -> IPv4Interface:
        return IPv4Interface(f"{self.guest_ip}/{self.prefix_length}")

    @property
    def gateway(self) -> IPv4Interface:
        return IPv4Interface(f"{self.gateway_ip}/{self.prefix_length}")


@dataclass(frozen=True, slots=True)
class Layout:
    """How the slots of one instance are named and numbered inside the subnet."""

    instance: str
    subnet: IPv4Network

    @classmethod
    def of(cls, instance: str, subnet: str) -> Layout:
        try:
            network = IPv4Network(subnet)
        except ValueError as error:
            raise HostSetupError(
                f"Setting subnet: {subnet!r} is no IPv4 network ({error}); write '10.93.0.0/16'."
            ) from error
        if network.prefixlen > _SLOT_PREFIX:
            raise HostSetupError(
                f"Setting subnet: {subnet} holds no slot; each sandbox takes a /{_SLOT_PREFIX}."
            )
        return cls(instance, network)

    @property
    def capacity(self) -> int:
        slots = 1 << (_SLOT_PREFIX - self.subnet.prefixlen)
        return min(slots, _NUMBERS)

    @property
    def first_index(self) -> int:
        """Where this instance starts to look, so that instances rarely try the same slot."""
        return int(self.instance, 16) % self.capacity

    @property
    def netns_prefix(self) -> str:
        return f"aenv-{self.instance}-"

    @property
    def interface_prefix(self) -> str:
        return f"{INTERFACE_PREFIX}{self.instance}"

    def slot(self, index: int, netns_folder: Path) -> Slot:
        base = self.subnet.network_address + index * _SLOT_SIZE
        netns = f"{self.netns_prefix}{index}"
        return Slot(
            index=index,
            netns=netns,
            netns_path=netns_folder / netns,
            gateway_ip=str(base + 1),
            guest_ip=str(base + 2),
            prefix_length=_SLOT_PREFIX,
            host_interface=f"{self.interface_prefix}{_base36(index)}",
        )


def _base36(number: int) -> str:
    digits = ""
    for _ in range(_DIGIT_COUNT):
        number, digit = divmod(number, len(_DIGITS))
        digits = _DIGITS[digit] + digits
    return digits
