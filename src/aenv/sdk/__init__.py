"""What user programs hold. The async classes are the implementation; the sync face is derived.

Imports models only; everything is imported on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from aenv.sdk._sync import Files, Process, Sandbox, Snapshot, Template, Volume, Watch
    from aenv.sdk.archives import Progress
    from aenv.sdk.building import BuiltTemplate
    from aenv.sdk.events import Exited, Output, OutputCallback, ProcessEvent, Started
    from aenv.sdk.files import AsyncFiles
    from aenv.sdk.processes import AsyncProcess
    from aenv.sdk.results import (
        CommandResult,
        EntryInfo,
        FileEvent,
        LogLine,
        ProcessInfo,
        SandboxInfo,
        TemplateSummary,
    )
    from aenv.sdk.sandboxes import AsyncSandbox
    from aenv.sdk.snapshots import AsyncSnapshot, SnapshotInfo
    from aenv.sdk.templates import AsyncTemplate
    from aenv.sdk.volumes import AsyncVolume, VolumeFile, VolumeInfo
    from aenv.sdk.watches import AsyncWatch

_HOMES = {
    "_sync": ("Files", "Process", "Sandbox", "Snapshot", "Template", "Volume", "Watch"),
    "archives": ("Progress",),
    "building": ("BuiltTemplate",),
    "events": ("Exited", "Output", "OutputCallback", "ProcessEvent", "Started"),
    "files": ("AsyncFiles",),
    "processes": ("AsyncProcess",),
    "results": (
        "CommandResult",
        "EntryInfo",
        "FileEvent",
        "LogLine",
        "ProcessInfo",
        "SandboxInfo",
        "TemplateSummary",
    ),
    "sandboxes": ("AsyncSandbox",),
    "snapshots": ("AsyncSnapshot", "SnapshotInfo"),
    "templates": ("AsyncTemplate",),
    "volumes": ("AsyncVolume", "VolumeFile", "VolumeInfo"),
    "watches": ("AsyncWatch",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "AsyncFiles",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncSnapshot",
    "AsyncTemplate",
    "AsyncVolume",
    "AsyncWatch",
    "BuiltTemplate",
    "CommandResult",
    "EntryInfo",
    "Exited",
    "FileEvent",
    "Files",
    "LogLine",
    "Output",
    "OutputCallback",
    "Process",
    "ProcessEvent",
    "ProcessInfo",
    "Progress",
    "Sandbox",
    "SandboxInfo",
    "Snapshot",
    "SnapshotInfo",
    "Started",
    "Template",
    "TemplateSummary",
    "Volume",
    "VolumeFile",
    "VolumeInfo",
    "Watch",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'aenv.sdk' has no attribute {name!r}")
    return getattr(import_module(f"aenv.sdk.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
