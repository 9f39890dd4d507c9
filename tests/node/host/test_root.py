"""Who counts as root of this host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from aenv.node.host.root import owns_host


@pytest.mark.parametrize(
    ("mapping", "owned"), [("0 0 4294967295", True), ("0 1000 1", False), ("0 100000 65536", False)]
)
def test_root_of_a_user_namespace_is_not_root_of_the_host(
    tmp_path: Path, mapping: str, owned: bool
) -> None:
    (tmp_path / "uid_map").write_text(f"         {mapping}\n")
    assert owns_host(tmp_path / "uid_map") is owned
    assert owns_host(tmp_path / "a kernel without them")


@pytest.mark.root
def test_a_rootless_container_is_told_what_it_lacks() -> None:
    program = "from aenv.node.host import root; print(root._missing_rights())"
    inside = ["unshare", "--user", "--map-root-user", sys.executable, "-c", program]
    told = subprocess.run(inside, capture_output=True, text=True, timeout=60, check=True).stdout
    assert "user namespace" in told
