"""What runsc is told about a machine."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from aenv.models.errors import InvalidRequestError
from aenv.models.folders import Folders
from aenv.models.sandboxes import NetworkPolicy, Resources
from aenv.models.settings import Settings
from aenv.node.engine import Bind, MachineSpec, Rootfs
from aenv.node.engines import available, create_engine
from aenv.node.engines.gvisor.config import oci_config, shared_memory_mb

SPEC = MachineSpec(
    sandbox_id="i" * 20,
    rootfs=Rootfs((Path("/lower"),), (Bind(Path("/usr"), "/usr"), Bind(Path("/d"), "/d", False))),
    resources=Resources(),
    network=NetworkPolicy(),
    hostname="guest",
    agent=Path("/bin/agent"),
    agent_env={"AENV_HOST_VERIFIER": "ab"},
)


def config(
    spec: MachineSpec = SPEC, cgroup: dict[str, Any] | None = None, shared_memory: int = 512
) -> dict[str, Any]:
    return oci_config(
        spec,
        root=Path("/merged"),
        guest_folder=Path("/guest"),
        boot_id=Path("/b/boot_id"),
        netns=Path("/run/netns/x"),
        cgroup=cgroup or {},
        shared_memory_mb=shared_memory,
    )


def test_the_agent_is_init_as_root_with_its_environment() -> None:
    process = config()["process"]

    assert process["args"] == ["/.aenv/agent"]
    assert process["user"] == {"uid": 0, "gid": 0}
    assert "AENV_HOST_VERIFIER=ab" in process["env"]
    assert any(entry.startswith("PATH=") for entry in process["env"])


def test_the_guest_gets_no_capability_that_reaches_beyond_it() -> None:
    for granted in config()["process"]["capabilities"].values():
        assert {"CAP_SETUID", "CAP_SETGID", "CAP_CHOWN", "CAP_AUDIT_WRITE"} <= set(granted)
        assert not {"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_NET_ADMIN", "CAP_NET_RAW"} & set(
            granted
        )


def test_binds_are_read_only_unless_asked_otherwise() -> None:
    mounts = {mount["destination"]: mount for mount in config()["mounts"]}

    assert mounts["/.aenv"]["options"] == ["rbind", "ro"]
    assert mounts["/usr"]["options"] == ["rbind", "ro"]
    assert mounts["/d"]["options"] == ["rbind", "rw"]
    assert mounts["/proc/sys/kernel/random/boot_id"]["source"] == "/b/boot_id"


def test_no_tmpfs_covers_tmp() -> None:
    assert "/tmp" not in {mount["destination"] for mount in config()["mounts"]}


@pytest.mark.parametrize("size", [0, 512])
def test_the_size_of_shared_memory_can_be_read_back(size: int) -> None:
    made = config(shared_memory=size)

    assert shared_memory_mb(made) == size
    assert ("/dev/shm" in {mount["destination"] for mount in made["mounts"]}) is bool(size)


def test_cgroups_are_named_only_where_there_are_any() -> None:
    limits = {"cgroupsPath": "/aenv/i/x", "resources": {"pids": {"limit": 4096}}}

    assert config(cgroup=limits)["linux"]["cgroupsPath"] == "/aenv/i/x"
    assert "cgroupsPath" not in config()["linux"]


def test_two_machines_of_a_template_have_the_same_mount_list() -> None:
    other = dataclasses.replace(SPEC, sandbox_id="j" * 20, hostname="other")

    assert [m["destination"] for m in config()["mounts"]] == [
        m["destination"] for m in config(other)["mounts"]
    ]


def test_an_unknown_engine_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    settings = Settings(folders=Folders(tmp_path, tmp_path, tmp_path, tmp_path))

    with pytest.raises(InvalidRequestError, match="process"):
        create_engine("docker", settings)
    assert available()[-1] == "process"
