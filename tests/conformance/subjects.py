"""What the suite needs of an engine under test: an instance of its own, specs, and an eye for what
is left behind.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from aenv.models.folders import Folders
from aenv.models.ids import new_sandbox_id
from aenv.models.sandboxes import AGENT_PORT, NetworkPolicy, Resources
from aenv.models.settings import Settings
from aenv.node.engine import Bind, Engine, Machine, MachineSpec, Rootfs
from aenv.node.engines import create_engine

HOST_SECRET = "conformance"  # of machines that live for a test
TOKEN = "conformance-token"
_LINKS = ("bin", "sbin", "lib", "lib64")
_FOLDERS = ("dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr", "var/tmp")
_UNREADABLE = ("supervisor.journal",)  # keeps the names of what it has forgotten


@dataclass
class Subject:
    """One engine of one server instance. ``restart`` is what a new server process would see."""

    name: str
    settings: Settings
    agent: Path
    skeleton: Path
    engine: Engine = field(init=False)

    def __post_init__(self) -> None:
        self.engine = create_engine(self.name, self.settings)

    @classmethod
    def of(cls, name: str, root: Path, agent: Path) -> Subject:
        folders = Folders(root / "data", root / "cache", root / "config", root / "run")
        settings = Settings(folders=folders, pool_mb=1024, disk_reserve_mb=64, network_slots=2)
        return cls(name, settings, agent, skeleton(root / "skeleton"))

    async def restart(self) -> None:
        await self.engine.close()
        self.engine = create_engine(self.name, self.settings)
        await self.engine.start()

    def spec(
        self,
        *,
        resources: Resources = Resources(cpu=2, memory_mb=512, disk_mb=256),  # noqa: B008  frozen
        agent: Path | None = None,
        hostname: str = "conformance",
        host_ca: bool = False,
    ) -> MachineSpec:
        return MachineSpec(
            sandbox_id=new_sandbox_id(),
            rootfs=Rootfs((self.skeleton,), (Bind(Path("/usr"), "/usr"),)),
            resources=resources,
            network=NetworkPolicy(),
            hostname=hostname,
            agent=agent or self.agent,
            agent_env={"AENV_HOST_VERIFIER": hashlib.sha256(HOST_SECRET.encode()).hexdigest()},
            host_ca=host_ca,
        )

    def traces(self, sandbox_id: str) -> list[str]:
        """Everything on this host that still names the sandbox: processes, mounts, cgroups,
        files.
        """
        return [
            *_processes(sandbox_id),
            *_lines(Path("/proc/self/mounts"), sandbox_id),
            *_named(Path("/sys/fs/cgroup"), sandbox_id),
            *_named(self.settings.folders.data, sandbox_id),
            *_mentions(self.settings.folders.run, sandbox_id),
        ]

    def instance_traces(self) -> list[str]:
        """What still names the whole instance in the kernel, once no sandbox is left and it is
        closed.
        """
        instance = self.settings.folders.instance
        return [
            *_processes(str(self.settings.folders.run)),
            *_lines(Path("/proc/self/mounts"), str(self.settings.folders.data)),
            *_named(Path("/sys/fs/cgroup"), instance),
            *_named(Path("/run/netns"), instance),
            *_named(Path("/sys/class/net"), instance),
        ]


async def healthy(machine: Machine, *, timeout: float = 10) -> bool:
    """Whether the agent answers /health in time."""
    async with httpx.AsyncClient(trust_env=False, timeout=1) as client:
        try:
            async with asyncio.timeout(timeout):
                while True:
                    try:
                        return (await client.get(_url(machine, "/health"))).is_success
                    except httpx.TransportError:
                        await asyncio.sleep(0.005)
        except TimeoutError:
            return False


async def tell(machine: Machine, variables: dict[str, str]) -> None:
    """Put something into the agent's memory."""
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
        reply = await client.post(
            _url(machine, "/init"),
            json={"envVars": variables, "accessToken": TOKEN},
            headers={"X-Aenv-Host-Secret": HOST_SECRET},
        )
        reply.raise_for_status()


async def told(machine: Machine) -> dict[str, str]:
    """What the agent remembers of :func:`tell`."""
    async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
        reply = await client.get(_url(machine, "/envs"), headers={"X-Access-Token": TOKEN})
        return dict(reply.raise_for_status().json())


def _url(machine: Machine, path: str) -> str:
    address = machine.address(AGENT_PORT)
    return f"http://{address.host}:{address.port}{path}"


def skeleton(folder: Path) -> Path:
    """A root file system that borrows the host's /usr."""
    for name in _FOLDERS:
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "tmp").chmod(0o1777)
    for name in _LINKS:
        if Path("/", name).is_symlink():
            (folder / name).unlink(missing_ok=True)
            (folder / name).symlink_to(os.readlink(f"/{name}"))
    (folder / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nuser:x:1000:1000::/home:/bin/sh\n"
    )
    (folder / "etc/group").write_text("root:x:0:\nuser:x:1000:\n")
    return folder


def build_agent(target: Path, sources: Path) -> Path:
    subprocess.run(
        ["go", "build", "-trimpath", "-ldflags=-s -w", "-o", str(target), "."],
        cwd=sources,
        env={**os.environ, "CGO_ENABLED": "0"},
        check=True,
    )
    return target


def _processes(name: str) -> list[str]:
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (
                (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            )
        except OSError:
            continue
        if name in command:
            found.append(f"process {folder.name}: {command.strip()}")
    return found


def _lines(file: Path, name: str) -> list[str]:
    if not file.exists():
        return []
    return [line for line in file.read_text().splitlines() if name in line]


def _named(root: Path, name: str) -> list[str]:
    if not root.exists():
        return []
    found = []
    for folder, folders, files in os.walk(root):
        found += [os.path.join(folder, entry) for entry in (*folders, *files) if name in entry]
    return found


def _mentions(root: Path, name: str) -> list[str]:
    """Files that are named so or, being small, say so."""
    found = _named(root, name)
    for folder, _, files in os.walk(root):
        for entry in files:
            path = Path(folder, entry)
            if entry in _UNREADABLE or not path.is_file() or path.stat().st_size > 1 << 20:
                continue
            if name.encode() in path.read_bytes():
                found.append(f"{path} mentions it")
    return found
