"""The runsc command line, run by the supervisor, each command with a deadline."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from aenv.models.errors import EngineError
from aenv.node.engine import ExecResult
from aenv.node.engines.gvisor.bundle import Bundle
from aenv.node.supervisor.client import RunResult, SupervisorClient

_START_TIMEOUT = 60.0
_RESTORE_TIMEOUT = 300.0
_SHORT_TIMEOUT = 20.0


class Runsc:
    """``limits``: whether runsc joins the cgroups of the configuration."""

    def __init__(self, binary: Path, supervisor: SupervisorClient, *, limits: bool) -> None:
        self.binary = binary
        self._supervisor = supervisor
        self._limits = limits

    async def run(self, bundle: Bundle) -> None:
        """Create and start; returns when the guest's init runs."""
        await self._start(bundle, "run", [], _START_TIMEOUT)

    async def restore(self, bundle: Bundle, image: Path, *, more_mounts: bool = False) -> None:
        """``more_mounts``: there may be some that the machine of the image did not have."""
        options = [f"-image-path={image}"]
        flags = ["--restore-spec-validation=warning"] if more_mounts else []
        await self._start(bundle, "restore", options, _RESTORE_TIMEOUT, flags)

    async def pause(self, bundle: Bundle) -> None:
        await self._short(bundle, "pause")

    async def resume(self, bundle: Bundle) -> None:
        await self._short(bundle, "resume")

    async def checkpoint(self, bundle: Bundle, folder: Path) -> None:
        await self._short(
            bundle,
            "checkpoint",
            ["-leave-running", f"-image-path={folder}"],
            timeout=_RESTORE_TIMEOUT,
        )

    async def execute(self, bundle: Bundle, argv: Sequence[str], timeout: float) -> ExecResult:
        command = [*self._flags(bundle), "exec", bundle.sandbox_id, *argv]
        result = await self._supervisor.run(command, timeout=timeout)
        if result.timed_out:
            raise EngineError(f"`{argv[0]}` did not end within {timeout:g} s")
        return ExecResult(_code(result), result.stdout, result.stderr)

    async def _start(
        self,
        bundle: Bundle,
        verb: str,
        options: Sequence[str],
        timeout: float,
        flags: Sequence[str] = (),
    ) -> None:
        command = [
            *self._flags(bundle),
            *flags,
            f"--panic-log={bundle.panic_log}",
            verb,
            "-detach",
            f"-bundle={bundle.folder}",
            *options,
            bundle.sandbox_id,
        ]
        result = await self._supervisor.run(command, timeout=timeout, console=bundle.console)
        self._check(bundle, verb, result, timeout)

    async def _short(
        self,
        bundle: Bundle,
        verb: str,
        options: Sequence[str] = (),
        timeout: float = _SHORT_TIMEOUT,
    ) -> None:
        command = [*self._flags(bundle), verb, *options, bundle.sandbox_id]
        result = await self._supervisor.run(command, timeout=timeout)
        self._check(bundle, verb, result, timeout)

    def _check(self, bundle: Bundle, verb: str, result: RunResult, timeout: float) -> None:
        if result.timed_out:
            raise EngineError(
                f"runsc {verb} of {bundle.sandbox_id} hung and was killed after {timeout:g} s"
            )
        if not result.ok:
            reason = _logged_error(bundle) or (result.stderr + result.stdout).decode(
                errors="replace"
            )
            raise EngineError(
                f"runsc {verb} of {bundle.sandbox_id} failed: {reason.strip()[-800:] or result}"
            )

    def _flags(self, bundle: Bundle) -> list[str]:
        flags = [
            str(self.binary),
            f"--root={bundle.runsc_root}",
            "--platform=systrap",
            "--network=sandbox",
            "--overlay2=none",
            "--allow-suid",
            f"--log={bundle.runsc_log}",
            "--log-format=json",
        ]
        return flags if self._limits else [*flags, "--ignore-cgroups"]


def _logged_error(bundle: Bundle) -> str:
    """The last thing runsc wrote to its log, which it does before it dies."""
    lines = bundle.text(bundle.runsc_log, 65536).splitlines()
    try:
        return str(json.loads(lines[-1])["msg"]) if lines else ""
    except (ValueError, KeyError, TypeError):
        return ""


def _code(result: RunResult) -> int:
    if result.signal is not None:
        return 128 + result.signal
    return result.code or 0
