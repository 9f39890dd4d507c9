"""Snapshots and their children, made with an engine alone: what a node does, in a few lines."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import secrets
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from tests.conformance.subjects import Subject

from aenv.models.ids import new_sandbox_id
from aenv.models.sandboxes import AGENT_PORT
from aenv.node.agents import AgentClient
from aenv.node.agentwire import AgentInit, envelope, process_events
from aenv.node.engine import DiskImage, Machine, MachineSpec, MemoryImage
from aenv.node.guests import hosts_file

PYTHON = "/usr/bin/python3"


@dataclass
class Guest:
    """A sandbox as a node sees it: a machine, its agent and the secrets it was given."""

    machine: Machine
    spec: MachineSpec
    secret: str
    token: str
    failures: tuple[str, ...] = ()
    agent: AgentClient = field(init=False)

    def __post_init__(self) -> None:
        address = self.machine.address(AGENT_PORT)
        self.agent = AgentClient(address, host_secret=self.secret, access_token=self.token)

    @property
    def id(self) -> str:
        return self.machine.sandbox_id

    async def run(self, script: str) -> str:
        """A shell script as root, outside of the agent's environment; it must succeed."""
        done = await self.machine.exec(["/bin/sh", "-c", script])
        assert done.exit_code == 0, f"{script}: {done.stdout!r} {done.stderr!r}"
        return done.stdout.decode().strip()

    async def write(self, path: str, content: str, mode: str = "644") -> None:
        await self.run(f"mkdir -p $(dirname {path}); cat > {path} <<'END'\n{content}\nEND")
        await self.run(f"chmod {mode} {path}")

    async def envs(self) -> dict[str, str]:
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            reply = await client.get(self._url("/envs"), headers={"X-Access-Token": self.token})
            return dict(reply.raise_for_status().json())

    async def call(self, method: str, message: dict[str, Any]) -> dict[str, Any]:
        """A unary call of the agent's process service."""
        headers = {"X-Access-Token": self.token}
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            url = self._url(f"/process.Process/{method}")
            reply = await client.post(url, json=message, headers=headers)
            return dict(reply.raise_for_status().json())

    async def start(self, script: str, *, tag: str, limit: float) -> int:
        """Start a script with a time limit in seconds, and leave it running. Returns its pid."""
        async with self.attached(script, tag=tag, limit=limit) as pid:
            return pid

    @asynccontextmanager
    async def attached(self, script: str, *, tag: str, limit: float) -> AsyncIterator[int]:
        """Start a script and stay connected to its output, without reading it."""
        message = {"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "tag": tag}
        headers = {
            "Content-Type": "application/connect+json",
            "Connect-Timeout-Ms": str(int(limit * 1000)),
            "X-Access-Token": self.token,
        }
        body = envelope(json.dumps(message).encode())
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            url = self._url("/process.Process/Start")
            async with client.stream("POST", url, content=body, headers=headers) as reply:
                events = process_events(reply.aiter_bytes())
                yield int((await anext(events))["start"]["pid"])

    async def status(self, path: str, headers: dict[str, str]) -> int:
        async with httpx.AsyncClient(trust_env=False, timeout=5) as client:
            return (await client.get(self._url(path), headers=headers)).status_code

    def _url(self, path: str) -> str:
        address = self.machine.address(AGENT_PORT)
        return f"http://{address.host}:{address.port}{path}"

    async def eventually(self, script: str, *, timeout: float = 20) -> str:
        """What the script says once it says something."""
        async with asyncio.timeout(timeout):
            while not (said := await self.run(script)):  # noqa: ASYNC110  in the guest
                await asyncio.sleep(0.05)
        return said


@dataclass(frozen=True)
class Kept:
    """A snapshot: memory and disk of one moment, and the secret its agent knows the host by."""

    spec: MachineSpec
    memory: MemoryImage
    disk: DiskImage
    secret: str
    sandbox_id: str
    taken: float


async def boot(subject: Subject, **init: Any) -> Guest:
    secret, token = secrets.token_hex(8), secrets.token_hex(8)
    spec = subject.spec(hostname="source")
    spec = dataclasses.replace(spec, hostname=spec.sandbox_id, agent_env=_verifier(secret))
    guest = Guest(await subject.engine.boot(spec), spec, secret, token)
    await guest.agent.initialise(_init(guest, **init), timeout=20)
    return guest


async def keep(subject: Subject, guest: Guest) -> Kept:
    """A snapshot; the guest stays frozen."""
    name = f"s{secrets.token_hex(10)[:19]}"
    folder = Path(subject.settings.folders.data, "images", name)
    await guest.machine.sync()
    await guest.machine.freeze()
    memory = await guest.machine.checkpoint(folder)
    disk = await guest.machine.save_disk(name)
    return Kept(guest.spec, memory, disk, guest.secret, guest.id, time.time())


async def fork(subject: Subject, kept: Kept, *, memory: bool = True, **init: Any) -> Guest:
    """A child: a new id, new secrets. Without ``memory`` it boots from the disk."""
    return await _restore(subject, kept, new_sandbox_id(), False, memory, init)


async def two_forks(subject: Subject, guest: Guest) -> tuple[Guest, Guest]:
    """Two children of one moment, made after the source has gone."""
    kept = await keep(subject, guest)
    await guest.machine.destroy()
    one, two = await asyncio.gather(fork(subject, kept), fork(subject, kept))
    return one, two


async def resume(
    subject: Subject, kept: Kept, guest: Guest, *, memory: bool = True, **init: Any
) -> Guest:
    """The same sandbox again; what is left of the one before is destroyed."""
    await guest.machine.destroy()
    init = {"access_token": guest.token, **init}
    return await _restore(subject, kept, guest.id, True, memory, init)


async def _restore(
    subject: Subject,
    kept: Kept,
    sandbox_id: str,
    resumed: bool,
    memory: bool,
    init: dict[str, Any],
) -> Guest:
    secret, token = secrets.token_hex(8), init.pop("access_token", secrets.token_hex(8))
    spec = dataclasses.replace(
        kept.spec,
        sandbox_id=sandbox_id,
        hostname=sandbox_id,
        agent_env=_verifier(secret),
        disk=kept.disk,
        same_life=resumed and memory,
    )
    if memory:
        machine = await subject.engine.restore(spec, kept.memory)
    else:
        machine = await subject.engine.boot(spec)
    inherited = Guest(machine, spec, kept.secret if memory else secret, token)
    restored = AgentInit(
        restored=True,
        resumed=resumed,
        life_id=secrets.token_hex(8),
        away=time.time() - kept.taken,
        next_verifier=spec.agent_env["AENV_HOST_VERIFIER"],
    )
    body = dataclasses.replace(restored, **_fields(inherited, init))
    failures = await inherited.agent.initialise(body, timeout=20)
    return Guest(machine, spec, secret, token, failures)


def _init(guest: Guest, **init: Any) -> AgentInit:
    return AgentInit(**_fields(guest, init))


def _fields(guest: Guest, init: dict[str, Any]) -> dict[str, Any]:
    network = guest.machine.guest_network
    return {
        "sandbox_id": guest.id,
        "access_token": guest.token,
        "default_user": "root",
        "hostname": guest.id if network else "",
        "hosts": hosts_file(guest.id, network) if network else "",
        "dns_servers": network.nameservers if network else (),
        **init,
    }


def _verifier(secret: str) -> dict[str, str]:
    return {"AENV_HOST_VERIFIER": hashlib.sha256(secret.encode()).hexdigest()}


async def start_program(guest: Guest, program: str) -> None:
    """Run a Python program in the guest that defines ``answer()``. It is asked once, by
    :func:`ask`, perhaps in another life.
    """
    await guest.write("/tmp/program.py", _TELLING + program + _WAITING)
    # By the agent: what the engine itself has started does not survive in gVisor's images.
    await guest.agent.spawn(f"exec {PYTHON} /tmp/program.py", user="root")
    said = await guest.eventually(
        "cat /tmp/ready 2>/dev/null || cat /tmp/ended 2>/dev/null || true"
    )
    assert said == "ready"


async def ask(guest: Guest) -> Any:
    await guest.run("touch /tmp/question")
    said = await guest.eventually(
        "cat /tmp/answer 2>/dev/null || cat /tmp/ended 2>/dev/null || true"
    )
    assert said.startswith(("{", "[", '"')), said
    return json.loads(said)


_TELLING = """
import sys, traceback
def ended(*error):
    with open("/tmp/ended", "w") as file:
        file.write("".join(traceback.format_exception(*error)))
sys.excepthook = ended
"""
_WAITING = """
import json, os, time
def put(path, text):
    with open(path + ".new", "w") as file:
        file.write(text)
    os.rename(path + ".new", path)
put("/tmp/ready", "ready")
while not os.path.exists("/tmp/question"):
    time.sleep(0.02)
put("/tmp/answer", json.dumps(answer()))
time.sleep(1000)
"""
