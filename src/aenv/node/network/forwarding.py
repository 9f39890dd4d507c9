"""``net.ipv4.ip_forward``: switched on only if it is off, and back by the last instance.

While it is on because of us, each instance's table forwards for slots only (``Table.guard``).
``file`` remembers that it is; without it, forwarding is left on for all.
"""

from __future__ import annotations

import json
from pathlib import Path

from aenv.node.host import Host
from aenv.node.network.registry import Registry
from aenv.node.network.slot import INTERFACE_PREFIX


class Forwarding:
    def __init__(self, folder: Path, host: Host, registry: Registry) -> None:
        self.file = folder / "forwarding.json"
        self._kernel = host.kernel
        self._links = host.links
        self._registry = registry

    def is_ours(self) -> bool:
        """Whether it is on because of us (this instance or one before it), or will be."""
        return self.is_remembered() or not self._kernel.ip_forward()

    def enable(self) -> None:
        with self._registry.locked():
            if not self._kernel.ip_forward():
                self.file.write_text(json.dumps({"boot_id": self._kernel.boot_id()}))
                self._kernel.set_ip_forward(True)

    def restore(self) -> None:
        """Switch it off again, if we switched it on and no other instance needs it."""
        with self._registry.locked():
            if not self.is_remembered() or self._registry.others_present():
                return
            if not self._links.veth_list(INTERFACE_PREFIX):
                self._kernel.set_ip_forward(False)
                self.file.unlink(missing_ok=True)

    def is_remembered(self) -> bool:
        """Whether it is on, in this boot, because of us."""
        try:
            boot_id = json.loads(self.file.read_text())["boot_id"]
        except (OSError, ValueError, KeyError, TypeError):
            return False
        return bool(boot_id == self._kernel.boot_id())
