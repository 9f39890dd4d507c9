"""What user programs hold. The async classes are the implementation; the sync face is derived.

Imports models only.
"""

from aenv.sdk._sync import Files, Process, Sandbox, Watch
from aenv.sdk.archives import Progress
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
from aenv.sdk.watches import AsyncWatch

__all__ = [
    "AsyncFiles",
    "AsyncProcess",
    "AsyncSandbox",
    "AsyncWatch",
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
    "Started",
    "TemplateSummary",
    "Watch",
]
