"""Named network namespaces, beside others who keep theirs in the same folder."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.root

_FOLDER = "/run/netns"
_OTHERS = 'run(["ip", "netns", "add", "other"], check=True)'
_REMOVAL = """
import os
from pathlib import Path
from subprocess import run

from aenv.node.host import namespaces

namespaces.create("ours", lambda: None)
{disturb}
namespaces.remove("ours")
left = Path("/proc/self/mountinfo").read_text()
print(namespaces.names("ours"), "/run/netns/ours" in left)
"""


@pytest.mark.parametrize(
    "disturb", ["", _OTHERS, f'{_OTHERS}; run(["umount", "{_FOLDER}/ours"], check=True)']
)
def test_a_namespace_is_removed_whatever_ip_netns_mounts_over_it(disturb: str) -> None:
    program = ["-c", _REMOVAL.format(disturb=disturb)]
    folder = Path(_FOLDER).resolve().parent  # a fresh one: the first `ip netns add` binds it
    script = f'mount -t tmpfs none {folder} && exec "$@"'
    inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script, "sh"]
    ended = subprocess.run(
        [*inside, sys.executable, *program], capture_output=True, text=True, timeout=60, check=False
    )

    assert ended.stderr == ""
    assert ended.stdout.strip() == "[] False"
