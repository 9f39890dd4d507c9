"""The floor of time travel: runsc alone, on the image of a sandbox of ours, with the same flags.

A :class:`Place` is what a restore needs, made ahead: a namespace with its link, an overlay over the
sandbox's disk, a bundle. What is timed is runsc, and the first connection to the guest's agent.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aenv import Sandbox, Snapshot
from aenv.models.folders import Folders
from aenv.models.sandboxes import AGENT_PORT
from aenv.node.engines.gvisor.control import ControlSocket
from aenv.node.runsc import find
from bench.harness import API_KEY, Server, timed

_PR_SET_CHILD_SUBREAPER = 36
_SUBNET = "10.213.{}.{}"
_DEADLINE = 60.0


@dataclass(frozen=True, slots=True)
class Image:
    """A copy of a snapshot and of what its machine was made of: the server may delete its own."""

    memory: Path
    upper: Path
    lowers: str
    boot_id: str
    config: dict[str, Any]

    @classmethod
    def of(cls, server: Server, sandbox: Sandbox, target: Path) -> Image:
        """Of a running sandbox as it is now."""
        kept = sandbox.snapshot()
        try:
            return cls._copy(server, sandbox.id, newest(server), target)
        finally:
            Snapshot.delete(kept.id, url=server.url, api_key=API_KEY)

    @classmethod
    def _copy(cls, server: Server, sandbox_id: str, snapshot_id: str, target: Path) -> Image:
        folders = Folders.resolve(server.env)
        machine = folders.instance_run / "gvisor" / "machines" / sandbox_id
        config = json.loads((machine / "config.json").read_text())
        target.mkdir(parents=True)
        shutil.copytree(server.data / "snapshots" / snapshot_id / "memory", target / "memory")
        disk = next(server.data.glob(f"*/.images/{snapshot_id}/upper"))
        subprocess.run(["cp", "-a", "--reflink=auto", disk, target / "upper"], check=True)
        lowers, boot_id = _lowers(config["root"]["path"]), (machine / "boot_id").read_text()
        return cls(target / "memory", target / "upper", lowers, boot_id, config)


class Place:
    """Where one machine can be restored, again and again."""

    def __init__(self, binary: Path, image: Image, folder: Path, number: int) -> None:
        self.name = f"aenvraw{secrets.token_hex(3)}"
        self._image = image
        self._folder = folder
        self._flags = [
            str(binary),
            f"--root={folder / 'state'}",
            "--platform=systrap",
            "--network=sandbox",
            "--overlay2=none",
            "--allow-suid",
        ]
        self._consoles: list[int] = []
        self._host, self.guest = _SUBNET.format(number, 1), _SUBNET.format(number, 2)

    @contextmanager
    def made(self) -> Iterator[Place]:
        with ExitStack() as undo:
            for name in ("top", "work", "merged", "state"):
                (self._folder / name).mkdir(parents=True)
            options = f"lowerdir={self._image.upper}:{self._image.lowers}"
            options += f",upperdir={self._folder}/top,workdir={self._folder}/work"
            merged = str(self._folder / "merged")
            _run("mount", "-t", "overlay", "overlay", "-o", options, merged)
            undo.callback(_run, "umount", "-l", merged)
            _run("ip", "netns", "add", self.name)
            undo.callback(_run, "ip", "netns", "del", self.name)
            link = self.name[:15]
            peer = ("peer", "name", "eth0", "netns", self.name)
            _run("ip", "link", "add", link, "type", "veth", *peer)
            _run("ip", "addr", "add", f"{self._host}/30", "dev", link)
            _run("ip", "link", "set", link, "up")
            for device in ("lo", "eth0"):
                _run("ip", "-n", self.name, "link", "set", device, "up")
            self._write_bundle()
            undo.callback(self.kill)
            yield self

    def prepare(self) -> None:
        """Not timed: the sandbox before has taken the address along."""
        _run("ip", "-n", self.name, "addr", "replace", f"{self.guest}/30", "dev", "eth0")
        _run("ip", "-n", self.name, "route", "replace", "default", "via", self._host)

    def restore(self) -> None:
        """Return when the agent of the restored guest can be connected to."""
        image = f"-image-path={self._image.memory}"
        command = [*self._flags, "restore", "-detach", f"-bundle={self._folder}", image, self.name]
        reader, writer = os.pipe()  # what the guest inherits must be a pipe, as it was
        self._consoles.append(reader)
        try:
            null = subprocess.DEVNULL
            done = subprocess.run(command, stdin=null, stdout=writer, stderr=writer, check=False)
        finally:
            os.close(writer)
        if done.returncode:
            raise RuntimeError(f"runsc restore: {os.read(reader, 1500).decode()}")
        deadline = time.monotonic() + _DEADLINE
        while time.monotonic() < deadline:
            with suppress(OSError), socket.create_connection((self.guest, AGENT_PORT), 0.05):
                return
        raise RuntimeError("the agent of a raw machine cannot be reached")

    def checkpoint(self, *, thaw: bool = False) -> None:
        """Freeze and write an image, by the control socket; it stays frozen unless ``thaw``."""
        folder = Path(tempfile.mkdtemp(dir=self._folder))
        asyncio.run(self._checkpoint(folder, thaw))
        shutil.rmtree(folder)

    def thaw(self) -> None:
        asyncio.run(self._control().resume())

    def kill(self) -> None:
        pids = [pid for pid in self._pids() if pid]
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        for pid in pids:
            with suppress(ChildProcessError):
                os.waitpid(pid, 0)
        command = [*self._flags, "delete", "-force", self.name]
        subprocess.run(command, check=False, capture_output=True, timeout=_DEADLINE)
        while self._consoles:
            os.close(self._consoles.pop())

    async def _checkpoint(self, folder: Path, thaw: bool) -> None:
        control = self._control()
        await control.pause()
        await control.checkpoint(folder)
        if thaw:
            await control.resume()

    def _control(self) -> ControlSocket:
        state = self._state()["sandbox"].get("controlSocketPath")
        return ControlSocket(
            self.name, state or str(self._folder / "state" / f"runsc-{self.name}.sock")
        )

    def _pids(self) -> list[int]:
        try:
            state = self._state()
        except FileNotFoundError:
            return []
        return [state["sandbox"].get("pid", 0), state.get("goferPid", 0)]

    def _state(self) -> dict[str, Any]:
        file = self._folder / "state" / f"{self.name}_sandbox:{self.name}.state"
        return dict(json.loads(file.read_text()))

    def _write_bundle(self) -> None:
        config = json.loads(json.dumps(self._image.config))
        config["root"]["path"] = str(self._folder / "merged")
        if "cgroupsPath" in config["linux"]:  # beside ours: sandboxes share their parent's time
            parent = config["linux"]["cgroupsPath"].rpartition("/")[0]
            config["linux"]["cgroupsPath"] = f"{parent}/{self.name}"
        for namespace in config["linux"]["namespaces"]:
            if namespace["type"] == "network":
                namespace["path"] = f"/run/netns/{self.name}"
        for mount in config["mounts"]:
            if mount["destination"].endswith("/boot_id"):
                (self._folder / "boot_id").write_text(self._image.boot_id)
                mount["source"] = str(self._folder / "boot_id")
        (self._folder / "config.json").write_text(json.dumps(config))


@contextmanager
def places(server: Server, image: Image, count: int, folder: Path) -> Iterator[list[Place]]:
    """``count`` places for machines of ``image``, gone afterwards with the machines in them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    binary = asyncio.run(find(Folders.resolve(server.env))).path
    with ExitStack() as stack:
        yield [
            stack.enter_context(Place(binary, image, folder / str(number), number + 1).made())
            for number in range(count)
        ]


def restored(raw: list[Place]) -> float:
    """Seconds until all of them have come back at once; they are killed afterwards."""
    for place in raw:
        place.prepare()
    with ThreadPoolExecutor(len(raw)) as pool:
        try:
            return timed(lambda: list(pool.map(Place.restore, raw)))
        finally:
            list(pool.map(Place.kill, raw))


def newest(server: Server) -> str:
    """The id of the snapshot that was taken last, as the node names it."""
    found = (one for one in (server.data / "snapshots").iterdir() if one.name[0] != ".")
    return max(found, key=lambda one: one.stat().st_mtime).name


def _lowers(root: str) -> str:
    """The layers of the overlay that is mounted on ``root``."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] == root:
            options = fields[-1].split(",")
            return next(o for o in options if o.startswith("lowerdir=")).removeprefix("lowerdir=")
    raise LookupError(f"nothing is mounted on {root}")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)
