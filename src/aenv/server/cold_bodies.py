"""AgentENV's start from an image (contract agentenv): a create with other names for its fields."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from pydantic import Field

from aenv.control.requests import CreateRequest
from aenv.control.volumes import MountRequest
from aenv.models.errors import InvalidRequestError, NotBuiltYetError
from aenv.server.bodies import (
    V1_TIMEOUT,
    AutoResume,
    Network,
    NewSandbox,
    Seconds,
    fingerprint,
)
from aenv.server.wire import Body, StrictBody

DISK_STEP = 1024


class AttachedDrive(StrictBody):
    """``driveID``: the name of a volume."""

    drive_id: str = Field(min_length=1, max_length=256)
    read_only: bool = True
    mount_path: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    sub_path: str | None = None
    disk_size_mb: int | None = None
    source: dict[str, Any] | None = None

    def request(self) -> MountRequest:
        """NotBuiltYetError for what makes a drive of something else."""
        for field, given in (
            ("source", self.source),
            ("subPath", self.sub_path),
            ("diskSizeMB", self.disk_size_mb),
        ):
            if given is not None:
                raise NotBuiltYetError(
                    f"attachedDrives.{field}: drives are volumes, mounted as a whole; make one "
                    "with POST /volumes, name it as driveID, and leave the field out"
                )
        path = self.mount_path or f"/mnt/{self.drive_id.partition('@')[0]}"
        return MountRequest(self.drive_id, path, self.read_only)


class ColdSandbox(Body):
    image: str = Field(min_length=1, max_length=255)
    timeout: Seconds = V1_TIMEOUT
    auto_pause: bool | None = None
    auto_resume: AutoResume | bool | None = None
    secure: bool | None = None
    allow_internet_access: bool | None = None
    network: Network | None = None
    metadata: dict[str, str] | None = None
    env_vars: dict[str, str] | None = None
    cpu_count: Annotated[float, Field(gt=0, le=1024, strict=False)] | None = None
    memory_mb: Annotated[int, Field(ge=128, le=16 * 2**20)] | None = None
    disk_size_mb: Annotated[int, Field(ge=DISK_STEP, le=2**30)] | None = None
    attached_drives: list[AttachedDrive] | None = None

    def request(self, idempotency_key: str | None) -> CreateRequest:
        """InvalidRequestError or NotBuiltYetError for what cannot be served."""
        if self.disk_size_mb is not None and self.disk_size_mb % DISK_STEP:
            raise InvalidRequestError(f"diskSizeMB: {self.disk_size_mb} is not whole GiB")
        drives = tuple(one.request() for one in self.attached_drives or ())
        request = self._plain().request(V1_TIMEOUT, idempotency_key)
        named = fingerprint(self, V1_TIMEOUT)
        return replace(request, volume_mounts=drives, fingerprint=named)

    def _plain(self) -> NewSandbox:
        """As E2B's clients would ask for it, without the drives."""
        resume = self.auto_resume
        return NewSandbox.model_construct(
            template_id=self.image,
            timeout=self.timeout,
            auto_pause=self.auto_pause,
            auto_resume=AutoResume(enabled=resume) if isinstance(resume, bool) else resume,
            allow_internet_access=self.allow_internet_access,
            network=self.network,
            metadata=self.metadata,
            env_vars=self.env_vars,
            cpu_count=self.cpu_count,
            memory_mb=self.memory_mb,
            disk_size_mb=self.disk_size_mb,
        )
