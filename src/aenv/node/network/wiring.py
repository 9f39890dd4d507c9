"""Slots as the kernel sees them: claimed, built, taken apart, swept. Everything here blocks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterator

from aenv.models.errors import CapacityError
from aenv.node.host import Links
from aenv.node.network import checks
from aenv.node.network.registry import Claim, Registry
from aenv.node.network.slot import Layout, Slot

_TRIES = 8


class Wiring:
    def __init__(self, layout: Layout, links: Links, registry: Registry) -> None:
        self._layout = layout
        self._links = links
        self._registry = registry
        self._next = layout.first_index

    def slot(self, index: int) -> Slot:
        return self._layout.slot(index, self._links.netns_path(""))

    def build(self) -> tuple[Slot, Claim]:
        """Claim a free slot and wire it. CapacityError when the subnet is full."""
        for _ in range(_TRIES):
            claim = self._registry.claim(self._candidates())
            if claim is None:
                break
            slot = self.slot(claim.index)
            try:
                self._wire(slot)
                alone = checks.is_alone(slot, self._links)
            except BaseException:
                self.demolish(slot)
                raise
            if alone:
                return slot, claim
            self.demolish(slot)
        raise CapacityError(
            f"All {self._layout.capacity} network slots of {self._layout.subnet} are taken. "
            "End sandboxes, or use a larger subnet (setting subnet).",
            retry_after=5,
        )

    def configure(self, slot: Slot) -> None:
        self._links.guest_configure(slot.netns, slot.guest, slot.gateway_ip)

    def demolish(self, slot: Slot) -> None:
        self._links.veth_remove(slot.host_interface)
        self._links.netns_remove(slot.netns)
        self._registry.free(slot.index)

    def recover(self) -> list[tuple[Slot, Claim]]:
        """The slots we held before a restart; what else bears our names is removed."""
        interfaces = set(self._links.veth_list(self._layout.interface_prefix))
        whole = []
        for claim in self._registry.mine():
            slot = self.slot(claim.index)
            if slot.host_interface in interfaces and slot.netns_path.exists():
                whole.append((slot, claim))
            else:
                self.demolish(slot)
        self._sweep([slot for slot, _ in whole])
        return whole

    def _sweep(self, slots: Collection[Slot]) -> None:
        """Remove our namespaces and interfaces that belong to none of ``slots``."""
        _remove(
            self._links.veth_list(self._layout.interface_prefix),
            {slot.host_interface for slot in slots},
            self._links.veth_remove,
        )
        _remove(
            self._links.netns_list(self._layout.netns_prefix),
            {slot.netns for slot in slots},
            self._links.netns_remove,
        )

    def _wire(self, slot: Slot) -> None:
        self._links.veth_remove(slot.host_interface)
        self._links.netns_remove(slot.netns)
        self._links.netns_create(slot.netns)
        self._links.veth_create(slot.host_interface, slot.netns, slot.gateway)
        self.configure(slot)

    def _candidates(self) -> Iterator[int]:
        """Every index once, from after the last one used, so that addresses come back late."""
        taken = checks.taken_networks(self._layout, self._links)
        for _ in range(self._layout.capacity):
            index, self._next = self._next, (self._next + 1) % self._layout.capacity
            if self.slot(index).guest.network not in taken:
                yield index


def netns_exists(layout: Layout, links: Links) -> Callable[[str, int], bool]:
    """Whether the namespace of another instance's slot is there; when in doubt, yes."""

    def exists(instance: str, index: int) -> bool:
        theirs = Layout(instance, layout.subnet)
        with contextlib.suppress(OSError):
            return links.netns_path(f"{theirs.netns_prefix}{index}").exists()
        return True

    return exists


def _remove(found: list[str], keep: set[str], remove: Callable[[str], None]) -> None:
    for name in found:
        if name not in keep:
            remove(name)
