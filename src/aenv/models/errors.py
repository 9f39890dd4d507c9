"""One tree of errors. Each class says whose fault it is and which HTTP status it becomes.

``code`` is a stable machine-readable word, ``message`` names the cause and the remedy.
"""

from __future__ import annotations

from enum import StrEnum
from typing import ClassVar


class Culprit(StrEnum):
    """Whose fault a failure is."""

    CALLER = "caller"
    POLICY = "policy"
    ENVIRONMENT = "environment"
    INFRASTRUCTURE = "infrastructure"


class AenvError(Exception):
    """Root of the tree."""

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    culprit: Culprit = Culprit.INFRASTRUCTURE

    def __init__(
        self, message: str, *, retry_after: float | None = None, culprit: Culprit | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after
        if culprit is not None:
            self.culprit = culprit

    def __str__(self) -> str:
        return self.message


class CallerError(AenvError):
    """The request cannot be served as it was made."""

    code = "caller"
    status = 400
    culprit = Culprit.CALLER


class InvalidRequestError(CallerError):
    """A field is missing, malformed or contradicts another one; the message names it."""

    code = "invalid_request"


class CommandNotFoundError(InvalidRequestError):
    """The sandbox has no program of that name."""

    code = "command_not_found"


class UnauthorizedError(CallerError):
    code = "unauthorized"
    status = 401


class ForbiddenError(CallerError):
    code = "forbidden"
    status = 403


class CommandNotExecutableError(ForbiddenError):
    """What was to be started is a folder, no program, or not for this user to start."""

    code = "command_not_executable"


class NotFoundError(CallerError):
    code = "not_found"
    status = 404


class SandboxNotFoundError(NotFoundError):
    """No such sandbox: never made, killed, or at the end of its time."""

    code = "sandbox_not_found"


class ConflictError(CallerError):
    """The noun is in a state that does not allow the request."""

    code = "conflict"
    status = 409


class SandboxPausedError(ConflictError):
    """The sandbox rests on disk and does not resume on traffic; the message says what resumes
    it.
    """

    code = "sandbox_paused"


class IdempotencyMismatchError(ConflictError):
    code = "idempotency_request_mismatch"


class UnresponsiveAtPauseError(ConflictError):
    """The memory of a paused sandbox holds an agent that did not answer; resume without memory."""

    code = "sandbox_snapshot_guest_agent_unresponsive"


class QuotaExceededError(CallerError):
    """A limit of the caller's key or team is reached; the message names it and the figures."""

    code = "quota_exceeded"
    status = 429


class CapabilityError(CallerError):
    """The host or engine lacks something the request needs; never worked around silently."""

    code = "capability_missing"
    status = 400


class NotBuiltYetError(CallerError):
    """A known route or field that this version does not serve."""

    code = "not_implemented"
    status = 501


class PolicyError(AenvError):
    """What the agent (the program inside the sandbox) did."""

    code = "policy"
    culprit = Culprit.POLICY


class GuestExitedError(PolicyError):
    """The guest ended its own init process."""

    code = "guest_exited"


class HostileArchiveError(PolicyError):
    """An archive from a sandbox tried to write outside of its destination."""

    code = "hostile_archive"


class CommandError(PolicyError):
    """A command did not end well. What it wrote is kept; ``exit_code`` None: it was stopped."""

    code = "command"
    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = None


class CommandFailedError(CommandError):
    """A command ended with a status other than 0 (``exec(check=True)``)."""

    code = "command_failed"


class CommandTimeoutError(CommandError):
    """A command ran past its timeout and was killed."""

    code = "command_timeout"


class EnvironmentFaultError(AenvError):
    """The task, template or start command is broken."""

    code = "environment"
    culprit = Culprit.ENVIRONMENT


class TemplateBuildError(EnvironmentFaultError):
    code = "template_build_failed"


class InfrastructureError(AenvError):
    """We failed, or the host did."""

    code = "infrastructure"


class HostSetupError(InfrastructureError):
    """The host lacks something; the message carries the command that fixes it."""

    code = "host_setup"


class ServerUnreachableError(InfrastructureError):
    """No aenv server answers at the URL; the message carries the command that starts one."""

    code = "server_unreachable"
    status = 503


class CapacityError(InfrastructureError):
    """The host cannot hold what was asked for at the moment; worth a retry."""

    code = "capacity"
    status = 503


class TemplateNotReadyError(InfrastructureError):
    """The template is still being built; ``retry_after`` says when to ask again."""

    code = "template_building"
    status = 503


class EngineError(InfrastructureError):
    """An engine operation failed."""

    code = "engine"


class ImageUnusableError(EngineError):
    """A memory image that this host cannot restore: other release, other CPU, damaged."""

    code = "image_unusable"


class SnapshotDamagedError(EngineError):
    """What is kept of a snapshot is damaged or gone; the message says what can still be done."""

    code = "snapshot_damaged"


class AgentUnreachableError(InfrastructureError):
    """The guest agent did not answer in time."""

    code = "agent_unreachable"


class GuestUnresponsiveError(InfrastructureError):
    """The guest agent does not answer, so the sandbox is not paused and runs on."""

    code = "sandbox_guest_agent_unresponsive"
    status = 503


class DiskFullError(InfrastructureError):
    code = "disk_full"
    status = 507


class BlobStoreError(InfrastructureError):
    """The blob store failed in a way of its own; the message has its words."""

    code = "blob_store"


class BlobStoreUnreachableError(BlobStoreError):
    """The blob store does not answer, or answers that it cannot serve at the moment."""

    code = "blob_store_unreachable"
    status = 503


class BlobStoreDeniedError(BlobStoreError):
    """The blob store refuses us: credentials or permissions are wrong."""

    code = "blob_store_denied"


class BlobMissingError(BlobStoreError):
    """An object that should be in the blob store is not there."""

    code = "blob_missing"


class BlobDamagedError(BlobStoreError):
    """An object in the blob store is not what was put there."""

    code = "blob_damaged"


class UploadLapsedError(BlobStoreError):
    """An upload stood still for longer than its lease; put it again, only what lacks is sent."""

    code = "upload_lapsed"
    status = 503
