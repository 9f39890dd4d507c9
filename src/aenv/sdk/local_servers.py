"""The server of this machine: found, or started in the background and shared by all programs.

One lock makes sure that two programs which need it at once start one. Blocking; callers run it in a
worker thread.
"""

from __future__ import annotations

import fcntl
import http.client
import importlib.util
import os
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from aenv.models.errors import HostSetupError, ServerUnreachableError
from aenv.models.folders import Folders
from aenv.sdk.endpoints import DEFAULT_PORT, DEFAULT_PROFILE, Endpoint, read_profiles
from aenv.sdk.holders import holder_of, running

IDLE_EXIT = 600
"""Seconds without sandbox or request after which a server that was started on demand ends."""
START_DEADLINE = 60.0
PATIENCE = 10.0
"""Seconds for the answer of a server whose process lives: on a busy host that takes a while, and a
second server could not have its data folder anyway.
"""
LOG_NAME = "server.log"
SETTINGS_NAME = "config.toml"
_NO_ENGINE = (
    'gVisor sandboxes need root on Linux. Run this as root (sudo), or let root run "aenv up" and '
    "store its key here with `aenv auth set`. For code you trust there is the process engine, "
    'which isolates nothing and is never chosen for you: engine="process"'
)


@dataclass(frozen=True, slots=True)
class Launch:
    """How to start a server. ``idle_exit`` None: it runs until it is told to end.

    ``strict``: only the server of exactly this data folder will do.
    """

    folders: Folders
    engine: str | None = None
    host: str | None = None
    port: int | None = None
    idle_exit: float | None = IDLE_EXIT
    api_key: str | None = None
    strict: bool = False

    def find(self) -> Endpoint | None:
        return find(self.folders, api_key=self.api_key, strict=self.strict)

    def argv(self, port: int | None) -> list[str]:
        words = [sys.executable, "-m", "aenv.cli.main", "server", "--data", str(self.folders.data)]
        if port is not None:
            words += ["--port", str(port)]
        if self.host:
            words += ["--host", self.host]
        if self.engine:
            words += ["--engine", self.engine]
        if self.idle_exit is not None:
            words += ["--idle-exit", f"{self.idle_exit:g}"]
        return words


def find(folders: Folders, *, api_key: str | None = None, strict: bool = False) -> Endpoint | None:
    """The local server, if one answers: this data folder's, else the one that is the default.

    Somebody who chose a data folder (``strict``, ``AENV_DATA_DIR``) wants no other server.
    """
    profiles = read_profiles(folders)
    default = profiles.get(DEFAULT_PROFILE)
    places = [(folders.data, profiles.get(folders.instance))]
    strict = strict or bool(os.environ.get("AENV_DATA_DIR"))
    if default is not None and default.data and not strict:
        places.append((Path(default.data), default))
    for data, profile in places:
        url = running(data)
        if url and answers(url, timeout=PATIENCE):
            return Endpoint(url, api_key or (profile.api_key if profile else None))
    return None


def find_or_start(launch: Launch) -> Endpoint:
    """The local server; started when none answers. HostSetupError says what this host lacks."""
    found = launch.find()
    if found is not None:
        return found
    require_server_extra()
    _require_rights(launch.engine or configured(launch.folders, "engine"))
    with _only_one(launch.folders):
        return launch.find() or _start(launch)


def own(folders: Folders) -> Endpoint:
    """The server of exactly this data folder. ServerUnreachableError when it does not answer."""
    key = os.environ.get("AENV_API_KEY")
    found = find(folders, api_key=key, strict=True)
    if found is None:
        raise ServerUnreachableError(
            f"the server of {folders.data} does not answer; see {log_of(folders)}. If it hangs, "
            f"end it by `kill -9 {(holder_of(folders.data) or {}).get('pid', 'PID')}`; its "
            "sandboxes live on"
        )
    return found


def log_of(folders: Folders) -> Path:
    return folders.data / LOG_NAME


def require_server_extra() -> None:
    """HostSetupError where only the SDK and CLI are installed."""
    if any(importlib.util.find_spec(name) is None for name in ("uvicorn", "fastapi", "sqlalchemy")):
        raise HostSetupError(
            "no server is configured and this installation cannot run one; install the server "
            "(pip install 'aenv-platform[server]') or name one: AENV_SYSTEM_URL, AENV_API_KEY"
        )


def _require_rights(engine: str | None) -> None:
    """What would make the server's start fail anyway, said better."""
    if engine == "process":
        return
    if sys.platform != "linux" or os.geteuid() != 0:
        raise HostSetupError(f"no aenv server runs here. {_NO_ENGINE}")


def answers(url: str, *, timeout: float = 2.0) -> bool:
    """Whether an aenv (or E2B) server is healthy there."""
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(parts.hostname or "", parts.port, timeout=timeout)
    try:
        connection.request("GET", f"{parts.path}/health")
        return connection.getresponse().status in (200, 204)
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _start(launch: Launch) -> Endpoint:
    folder = launch.folders.data
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    log = log_of(launch.folders)
    port = launch.port if launch.port is not None else _usual_port(launch.folders)
    with log.open("ab") as output:
        start = output.tell()
        process = subprocess.Popen(
            launch.argv(port),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd="/",
        )
    try:
        return _ready(launch, process, log, start)
    except BaseException:
        process.terminate()
        raise


def _ready(launch: Launch, process: subprocess.Popen[bytes], log: Path, start: int) -> Endpoint:
    deadline = time.monotonic() + START_DEADLINE
    while time.monotonic() < deadline:
        found = launch.find()
        if found is not None:
            return found
        code = process.poll()
        if code is not None:
            raise ServerUnreachableError(
                f"the server ended with status {code} at its start: {_last_words(log, start)} "
                f"(log: {log}; what this host lacks: aenv doctor)"
            )
        time.sleep(0.02)
    raise ServerUnreachableError(
        f"the server was not ready within {START_DEADLINE:g} s: {_last_words(log, start)} "
        f"(log: {log})"
    )


def _last_words(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - 4096))
        lines = file.read().decode("utf-8", "replace").strip().splitlines()
    return lines[-1].removeprefix("aenv: ") if lines else "it wrote nothing"


def _usual_port(folders: Folders) -> int | None:
    """The default port, 0 (any) when some other program has it; None: the settings name one."""
    if configured(folders, "port"):
        return None
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", DEFAULT_PORT))
        except OSError:
            return 0
    return DEFAULT_PORT


def displaced(folders: Folders, url: str) -> bool:
    """Whether another program's hold of the default port made the server take another one."""
    return not configured(folders, "port") and urlsplit(url).port != DEFAULT_PORT


def configured(folders: Folders, key: str) -> str | None:
    """What environment or settings file say; a broken file is the server's to complain about."""
    if text := os.environ.get(f"AENV_{key.upper()}"):
        return text
    try:
        value = tomllib.loads((folders.config / SETTINGS_NAME).read_text()).get(key)
    except (OSError, ValueError):
        return None
    return None if value is None else str(value)


@contextmanager
def _only_one(folders: Folders) -> Iterator[None]:
    """Serialises starts for one data folder; waits for the other program's start to end."""
    folders.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (folders.data / "start.lock").open("w") as file:
        deadline = time.monotonic() + START_DEADLINE + 5
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ServerUnreachableError(
                        "another program has been starting the server for too long; "
                        f"see {folders.data / LOG_NAME}"
                    ) from error
                time.sleep(0.05)
        yield
