"""Whose doing the end of a machine was.

The sandbox process ends with the status of the guest's init (the agent), so an orderly exit is the
guest's doing: nobody but the guest's root can end its init. A signal from outside, a panic of the
sentry (it leaves a report) or gVisor's own fatal error (128) is ours, and so is the death of the
file server by a signal: the sentry ends the guest then. The kernel's OOM killer is the guest's: it
used more than its limit.
"""

from __future__ import annotations

import signal

from aenv.models.errors import Culprit
from aenv.models.sandboxes import Resources, SandboxExit
from aenv.node.supervisor.client import Ending

_FATAL = 128
_KILLED = 137


def classify(
    sandbox_id: str,
    ending: Ending,
    *,
    gofer: Ending | None = None,
    oom_kills: int,
    panic: str,
    log: str,
    console: str,
    resources: Resources,
) -> SandboxExit:
    """``gofer``: how the file server had ended before; None: it had not."""
    code = 128 + ending.signal if ending.signal is not None else ending.code

    def ended(culprit: Culprit, reason: str) -> SandboxExit:
        return SandboxExit(sandbox_id, code, culprit, reason)

    if code is None:
        lost = "ended while its supervisor was down; its exit status is unknown"
        return ended(Culprit.INFRASTRUCTURE, lost)
    if oom_kills and code == _KILLED:
        limit = f"out of memory: the sandbox used more than its {resources.memory_mb} MiB"
        return ended(Culprit.POLICY, limit)
    if ending.signal is not None:
        name = _signal_name(ending.signal)
        return ended(
            Culprit.INFRASTRUCTURE, f"the sandbox process was killed from outside ({name})"
        )
    if gofer is not None and gofer.signal is not None:
        name = _signal_name(gofer.signal)
        return ended(
            Culprit.INFRASTRUCTURE, f"the sandbox's file server was killed from outside ({name})"
        )
    if panic:
        return ended(Culprit.INFRASTRUCTURE, f"gVisor crashed: {_first_line(panic)}")
    if code == _FATAL and log:
        return ended(Culprit.INFRASTRUCTURE, f"gVisor failed: {_last_line(log)}")
    return ended(Culprit.POLICY, _guest_reason(code, console))


def _guest_reason(code: int, console: str) -> str:
    how = f"by {_signal_name(code - 128)}" if code > _FATAL else f"with code {code}"
    words = _last_line(console)
    return f"the guest's init ended {how}" + (f": {words}" if words else "")


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0][:500]


def _last_line(text: str) -> str:
    lines = text.strip().splitlines()
    return lines[-1][:500] if lines else ""
