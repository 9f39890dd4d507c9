"""nftables through ``nft``: one call is one transaction."""

from __future__ import annotations

import json
import shutil
import subprocess

from aenv.models.errors import HostSetupError
from aenv.node.host.port import Firewall

_TIMEOUT = 10


class RootFirewall(Firewall):
    def load(self, script: str) -> None:
        self._run(["-f", "-"], script)

    def ruleset(self) -> list[dict[str, object]]:
        answer = json.loads(self._run(["-j", "list", "ruleset"]) or "{}")
        found: list[dict[str, object]] = answer.get("nftables", [])
        return found

    def _run(self, arguments: list[str], script: str = "") -> str:
        tool = shutil.which("nft")
        if tool is None:
            raise HostSetupError(
                "nft is missing, so the network of sandboxes cannot be restricted. "
                "Install it with: apt-get install nftables"
            )
        done = subprocess.run(
            [tool, *arguments],
            input=script,
            check=False,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
        )
        if done.returncode != 0:
            raise HostSetupError(
                f"nft refused our rules ({done.stderr.strip() or done.returncode}). "
                "The kernel may lack nftables: modprobe nf_tables"
            )
        return done.stdout
