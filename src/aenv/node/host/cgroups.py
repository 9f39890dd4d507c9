"""Limits and accounts of sandboxes in control groups: v2, v1 and hybrid.

Groups are ``/aenv/<instance>/<sandbox id>``, made here with their limits before the engine starts:
runsc uses groups that exist and leaves them as they are.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

from aenv.models.errors import EngineError, HostSetupError
from aenv.models.sandboxes import Resources
from aenv.node.engine import Finding, Severity
from aenv.node.host.cgroup_versions import PERIOD, V1, V2, CgroupStats, Limits, Version
from aenv.node.host.hierarchies import Hierarchies

_REMOVE_DEADLINE = 5.0
_REMOVE_PAUSE = 0.01

__all__ = ["CgroupStats", "Cgroups"]


class Cgroups:
    """The groups of one server instance. ``overhead_mb`` is what the engine itself may use."""

    def __init__(
        self,
        instance: str,
        *,
        overhead_mb: int = 0,
        hierarchies: Hierarchies | None = None,
    ) -> None:
        self._parent = f"/aenv/{instance}"
        self._overhead_mb = overhead_mb
        found = hierarchies or Hierarchies.find()
        self._missing = found.missing
        self._version: Version = V2(found.unified) if found.unified else V1(found)
        self._refusal: str | None = None
        self._ready = False

    @property
    def available(self) -> bool:
        """Whether limits can be enforced here; otherwise run without and show :meth:`findings`."""
        if not self._ready and self._refusal is None:
            self._prepare()
        return self._ready

    def findings(self) -> list[Finding]:
        """Changes nothing."""
        obstacle = self._refusal or self._obstacle()
        if obstacle is None:
            version = type(self._version).__name__.lower()
            return [Finding("cgroups", Severity.OK, f"limits are enforced by cgroup {version}")]
        return [
            Finding(
                "cgroups",
                Severity.WARNING,
                f"CPU, memory and process limits are not enforced: {obstacle}. They are on the "
                "host itself, and in a container with its own writable cgroups (docker run "
                "--privileged --cgroupns=host)",
            )
        ]

    def path(self, sandbox_id: str) -> str:
        """The OCI ``cgroupsPath``, from the root of each hierarchy."""
        return f"{self._parent}/{sandbox_id}"

    def oci(self, sandbox_id: str, resources: Resources) -> dict[str, Any]:
        """``{"cgroupsPath": …, "resources": …}`` for the ``linux`` part of an OCI config."""
        limits = Limits.of(resources, self._overhead_mb)
        return {
            "cgroupsPath": self.path(sandbox_id),
            "resources": {
                "cpu": {"quota": limits.quota_us, "period": PERIOD},
                "memory": {"limit": limits.memory_bytes},
                "pids": {"limit": limits.pids},
            },
        }

    async def create(self, sandbox_id: str, resources: Resources) -> None:
        """Make the groups with their limits; idempotent. HostSetupError where there are none."""
        if not self.available:
            raise HostSetupError(f"This host cannot limit sandboxes: {self._refusal}.")
        path, limits = self.path(sandbox_id), Limits.of(resources, self._overhead_mb)
        await asyncio.to_thread(self._create, path, limits)

    async def stats(self, sandbox_id: str) -> CgroupStats:
        """Raises EngineError when the group is gone."""
        try:
            return await asyncio.to_thread(self._version.stats, self.path(sandbox_id))
        except OSError as error:
            raise EngineError(f"Sandbox {sandbox_id} has no control group: {error}") from error

    async def destroy(self, sandbox_id: str) -> None:
        """Kill what is inside and remove the groups; idempotent."""
        await asyncio.to_thread(self._destroy, self.path(sandbox_id))

    async def reap(self, keep: frozenset[str]) -> list[str]:
        """Destroy the groups of sandboxes not in ``keep``; return their ids."""
        names = await asyncio.to_thread(self._names)
        doomed = sorted(names - keep)
        for name in doomed:
            await self.destroy(name)
        return doomed

    async def close(self) -> None:
        """Remove the instance's own group if no sandbox is left in it."""
        for folder in self._version.everywhere(self._parent):
            with contextlib.suppress(OSError):
                folder.rmdir()
                folder.parent.rmdir()
        self._ready = False

    def _obstacle(self) -> str | None:
        if self._missing:
            return f"no controller for {', '.join(self._missing)}"
        return self._version.obstacle()

    def _prepare(self) -> None:
        self._refusal = self._obstacle()
        if self._refusal is not None:
            return
        try:
            self._version.prepare(self._parent)
            self._ready = True
        except OSError as error:
            self._refusal = f"{error.strerror} ({error.filename})"

    def _create(self, path: str, limits: Limits) -> None:
        try:
            for folder in self._version.folders(path):
                folder.mkdir(parents=True, exist_ok=True)
            self._version.limit(path, limits)
        except BaseException:
            self._destroy(path)
            raise

    def _destroy(self, path: str) -> None:
        deadline = time.monotonic() + _REMOVE_DEADLINE
        for folder in self._version.everywhere(path):
            while not _removed(folder):
                if time.monotonic() > deadline:
                    raise EngineError(f"The control group {folder} cannot be removed; it is busy.")
                _kill_all(folder)
                time.sleep(_REMOVE_PAUSE)

    def _names(self) -> set[str]:
        names: set[str] = set()
        for parent in self._version.everywhere(self._parent):
            with contextlib.suppress(FileNotFoundError):
                names.update(entry.name for entry in parent.iterdir() if entry.is_dir())
        return names


def _removed(folder: Path) -> bool:
    """Remove a group and those below it; False while a process is left inside."""
    if not folder.exists():
        return True
    for child in folder.iterdir():
        if child.is_dir() and not _removed(child):
            return False
    try:
        folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _kill_all(folder: Path) -> None:
    for parent, _, files in os.walk(folder):
        if "cgroup.kill" in files:
            with contextlib.suppress(OSError):
                (Path(parent) / "cgroup.kill").write_text("1")
        with contextlib.suppress(OSError):
            for pid in map(int, (Path(parent) / "cgroup.procs").read_text().split()):
                if pid > 0:  # 0: a process this pid namespace does not see; never our own group
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
