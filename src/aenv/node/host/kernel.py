"""Switches and identity of the running kernel."""

from __future__ import annotations

from pathlib import Path

from aenv.node.host.port import Kernel

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_IP_FORWARD = Path("/proc/sys/net/ipv4/ip_forward")


class RootKernel(Kernel):
    def boot_id(self) -> str:
        return _BOOT_ID.read_text().strip()

    def ip_forward(self) -> bool:
        return _IP_FORWARD.read_text().strip() == "1"

    def set_ip_forward(self, enabled: bool) -> None:
        _IP_FORWARD.write_text("1" if enabled else "0")
