"""nftables through ``nft``: one call is one transaction."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aenv.models.errors import HostSetupError
from aenv.node.host.port import Firewall

_TIMEOUT = 10
_LEGACY_TABLES = Path("/proc/net/ip_tables_names")
_NETLINK_NETFILTER = 12
_SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP_NFTABLES = 270, 1, 7


class RootFirewall(Firewall):
    def load(self, script: str) -> None:
        self._run(["-f", "-"], script)

    def tables(self) -> list[str]:
        return [line.removeprefix("table ") for line in self._run(["list", "tables"]).splitlines()]

    def has_legacy_rules(self) -> bool:
        try:
            return "filter" in _LEGACY_TABLES.read_text().split()
        except OSError:
            return False

    @contextmanager
    def changes(self) -> Iterator[socket.socket]:
        kind = socket.SOCK_RAW | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC
        with socket.socket(socket.AF_NETLINK, kind, _NETLINK_NETFILTER) as events:
            events.bind((0, 0))
            events.setsockopt(_SOL_NETLINK, _ADD_MEMBERSHIP, _GROUP_NFTABLES)
            yield events

    def ruleset(self) -> list[dict[str, Any]]:
        answer = json.loads(self._run(["-j", "list", "ruleset"]) or "{}")
        found: list[dict[str, Any]] = answer.get("nftables", [])
        return found

    def _run(self, arguments: list[str], script: str = "") -> str:
        tool = shutil.which("nft")
        if tool is None:
            raise HostSetupError(
                "nft is missing, so the network of sandboxes cannot be restricted. "
                "Install it with: apt-get install nftables"
            )
        try:
            done = subprocess.run(
                [tool, *arguments],
                input=script,
                check=False,
                capture_output=True,
                text=True,
                timeout=_TIMEOUT,
            )
        except subprocess.TimeoutExpired:
            raise HostSetupError(
                f"nft did not answer within {_TIMEOUT} s; is another program holding the ruleset?"
            ) from None
        if done.returncode != 0:
            raise HostSetupError(
                f"nft refused our rules ({done.stderr.strip() or done.returncode}). "
                "The kernel may lack nftables: modprobe nf_tables"
            )
        return done.stdout
