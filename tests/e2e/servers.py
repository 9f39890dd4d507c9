"""A live ``aenv server`` with folders of its own, and what it must not leave behind."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from aenv.models.folders import Folders
from aenv.models.ids import new_api_key

REPOSITORY = Path(__file__).parents[2]
START_TIMEOUT = 60.0
STOP_TIMEOUT = 60.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


@dataclass
class LiveServer:
    """``folder`` holds its data, config and run folders; the cache is the machine's."""

    folder: Path
    settings: dict[str, str] = field(default_factory=dict)
    api_key: str = field(default_factory=new_api_key)
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def env(self) -> dict[str, str]:
        """The environment of the server and of ``aenv`` commands that mean it."""
        names = ("data", "config", "run")
        folders = {f"AENV_{name.upper()}_DIR": str(self.folder / name) for name in names}
        return {
            **os.environ,
            "PYTHONPATH": str(REPOSITORY / "src"),
            **folders,
            "AENV_API_KEY": self.api_key,
            "AENV_PORT": str(self.port),
            "AENV_POOL_MB": "6144",
            "AENV_WARM_MAX": "0",  # tests of the pools set it: others count machines
            "AENV_TEMPLATE_MEMORY": "false",
            **self.settings,
        }

    @property
    def folders(self) -> Folders:
        return Folders.resolve(self.env)

    @property
    def client_env(self) -> dict[str, str]:
        """What a user of the E2B SDKs sets."""
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
        return {
            **kept,
            "E2B_API_KEY": self.api_key,
            "E2B_API_URL": self.url,
            "E2B_SANDBOX_URL": self.url,
            "E2B_VOLUME_API_URL": self.url,
            "E2B_VALIDATE_API_KEY": "false",
        }

    @property
    def log(self) -> Path:
        return self.folder / "server.log"

    def start(self) -> float:
        """Returns the seconds until it answered."""
        self.folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "aenv.cli.main", "server"],
                env=self.env,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )
        while time.monotonic() - started < START_TIMEOUT:
            if self.process.poll() is not None:
                raise AssertionError(f"the server ended at its start:\n{self.tail()}")
            try:
                if httpx.get(self.url + "/health", timeout=2).status_code == 204:
                    return time.monotonic() - started
            except httpx.TransportError:
                time.sleep(0.02)
        raise AssertionError(f"the server did not get ready:\n{self.tail()}")

    def stop(self, sent: signal.Signals = signal.SIGTERM) -> int:
        """Signal it, wait for its end; its exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(sent)
        return self.process.wait(STOP_TIMEOUT)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-4000:] if self.log.exists() else ""

    def down(self) -> None:
        """End the server, its sandboxes and its supervisor, also after a kill."""
        if self.process is None:
            return
        lives = self.process.poll() is None
        self.aenv("down", "--kill")
        if lives:
            assert self.process.wait(STOP_TIMEOUT) == 0

    def discard(self) -> None:
        """Down, nothing left on the host, and the disk space of its pool given back."""
        self.down()
        assert remains(self) == []
        shutil.rmtree(self.folder / "data", ignore_errors=True)

    def aenv(self, *words: str, timeout: float = 120, check: bool = True) -> str:
        """Run an ``aenv`` command against this server; its output."""
        return self._run(*words, timeout=timeout, check=check).stdout

    def told(self, *words: str) -> str:
        """What an ``aenv`` command says beside its output."""
        return self._run(*words, timeout=120).stderr

    def _run(
        self, *words: str, timeout: float, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "aenv.cli.main", *words],
            env=self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
        )
        assert done.returncode == 0 or not check, (
            f"aenv {' '.join(words)}: {done.stdout}{done.stderr}"
        )
        return done


def remains(server: LiveServer) -> list[str]:
    """What on the host names this server's folders or instance: processes, mounts, namespaces,
    firewall tables, cgroups, its run folder.
    """
    marks = (str(server.folder / "data"), str(server.folder / "run"), server.folders.instance)
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            command = _read(entry / "cmdline").replace("\0", " ")
            if any(mark in command for mark in marks):
                found.append(f"process {entry.name}: {command[:200]}")
    found += [
        f"mount {line}"
        for line in _read(Path("/proc/self/mountinfo")).splitlines()
        if any(mark in line for mark in marks)
    ]
    namespaces = Path("/run/netns")
    if namespaces.is_dir():
        found += [f"netns {one.name}" for one in namespaces.iterdir() if marks[2] in one.name]
    tables = subprocess.run(["nft", "list", "tables"], capture_output=True, text=True, check=True)
    found += [line for line in tables.stdout.splitlines() if marks[2] in line]
    if server.folders.instance_run.exists():
        found.append(f"run folder {server.folders.instance_run}")
    for base in (Path("/sys/fs/cgroup"), *Path("/sys/fs/cgroup").glob("*/")):
        found += [f"cgroup {one}" for one in base.glob(f"*{marks[2]}*")]
        found += [f"cgroup {one}" for one in base.glob(f"aenv*/*{marks[2]}*")]
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
