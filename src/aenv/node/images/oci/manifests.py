"""What registries say of an image: index, manifest, configuration. Anybody may have written it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError
from pydantic.alias_generators import to_camel

from aenv.models.errors import TemplateBuildError

MOST_LAYERS = 512
MOST_MANIFEST = 4 << 20
MOST_CONFIG = 8 << 20
MOST_BLOB = 64 << 30
_MOST_ENTRIES = 1024
INDEXES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFESTS = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
_CONFIGS = (
    "application/vnd.oci.image.config.v1+json",
    "application/vnd.docker.container.image.v1+json",
)
_LAYER = re.compile(
    r"application/vnd\.(oci\.image\.layer\.(nondistributable\.)?v1\.tar(\+gzip|\+zstd)?"
    r"|docker\.image\.rootfs\.(foreign\.)?diff\.tar(\.gzip|\.zstd)?)\Z"
)
_MACHINES = {"x86_64": ("amd64", ""), "aarch64": ("arm64", "v8"), "armv7l": ("arm", "v7")}
_VARIABLE = re.compile(r"[^=\0]+=[^\0]*\Z", re.DOTALL)

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]


class BadImageError(TemplateBuildError):
    """An image is not what its digest, its type or the specification says; the message names it."""

    code = "image_refused"


class _Part(BaseModel):
    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True)


class Platform(_Part):
    architecture: str = ""
    os: str = ""
    variant: str = ""


class Descriptor(_Part):
    digest: Digest
    size: int = Field(ge=0, le=MOST_BLOB)
    media_type: str = ""
    platform: Platform | None = None
    annotations: dict[str, str] | None = None


class Index(_Part):
    manifests: list[Descriptor] = Field(max_length=_MOST_ENTRIES)


class Manifest(_Part):
    config: Descriptor
    layers: list[Descriptor] = Field(max_length=MOST_LAYERS)


class _Rootfs(_Part):
    type: str = "layers"
    diff_ids: list[Digest] = Field(max_length=MOST_LAYERS, alias="diff_ids")


class _Execution(BaseModel):
    """Docker's spelling of the fields."""

    model_config = ConfigDict(frozen=True)

    Env: list[str] | None = None
    User: str | None = None
    WorkingDir: str | None = None
    Entrypoint: list[str] | None = None
    Cmd: list[str] | None = None
    ExposedPorts: dict[str, object] | None = None


class Config(_Part):
    architecture: str = ""
    os: str = ""
    rootfs: _Rootfs
    config: _Execution | None = None

    @property
    def execution(self) -> _Execution:
        return self.config or _Execution()

    def env(self) -> dict[str, str]:
        found = [one for one in self.execution.Env or () if _VARIABLE.match(one)]
        return {name: value for name, _, value in (one.partition("=") for one in found)}


@dataclass(frozen=True, slots=True)
class Described:
    """An image of one platform. ``digest``: sha256 of its manifest, hex."""

    digest: str
    manifest: Manifest


T = TypeVar("T", bound=_Part)


def read(kind: type[T], content: bytes, what: str) -> T:
    """Raises BadImageError."""
    try:
        return kind.model_validate_json(content)
    except (ValidationError, RecursionError) as error:
        said = error.errors()[0]["msg"] if isinstance(error, ValidationError) else "too deep"
        raise BadImageError(f"{what} is malformed: {said}") from error


def type_of(content: bytes, declared: str) -> str:
    """The media type a document gives itself, else the declared one."""
    try:
        own = json.loads(content).get("mediaType")
    except (ValueError, AttributeError, RecursionError):
        own = None
    return own if isinstance(own, str) and own else declared.partition(";")[0].strip()


def check_manifest(manifest: Manifest, what: str) -> None:
    """Raises BadImageError for what is no container image: charts, signatures, other artifacts."""
    if manifest.config.media_type not in _CONFIGS:
        raise BadImageError(
            f"{what} is no container image: its configuration is {manifest.config.media_type!r}"
        )
    if manifest.config.size > MOST_CONFIG:
        raise BadImageError(f"{what} has a configuration of {manifest.config.size} bytes")
    for layer in manifest.layers:
        if not _LAYER.match(layer.media_type):
            raise BadImageError(f"{what} has a layer of unknown type {layer.media_type!r}")


def check_config(config: Config, layers: int, what: str) -> None:
    """Raises BadImageError."""
    if len(config.rootfs.diff_ids) != layers:
        raise BadImageError(
            f"{what} has {layers} layers, but names {len(config.rootfs.diff_ids)} in its "
            "configuration"
        )
    architecture, _ = platform()
    if (config.os or "linux") != "linux" or (config.architecture or architecture) != architecture:
        raise BadImageError(
            f"{what} is made for {config.os}/{config.architecture}, this host is "
            f"linux/{architecture}"
        )


def platform() -> tuple[str, str]:
    """Architecture and variant of this host, in the image specification's words."""
    machine = os.uname().machine
    return _MACHINES.get(machine, (machine, ""))


def choose(index: Index, what: str) -> Descriptor:
    """The manifest for this host. Raises BadImageError listing what there is."""
    architecture, variant = platform()
    fitting = [
        one
        for one in index.manifests
        if one.platform is None
        or (one.platform.os or "linux", one.platform.architecture) == ("linux", architecture)
    ]
    exact = [one for one in fitting if one.platform and one.platform.variant == variant]
    if found := exact or fitting:
        return found[0]
    known = sorted(
        {
            f"{one.platform.os}/{one.platform.architecture}"
            for one in index.manifests
            if one.platform
        }
    )
    raise BadImageError(
        f"{what} is not made for linux/{architecture}, but for {', '.join(known[:20]) or 'nothing'}"
    )


def digest_of(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()
