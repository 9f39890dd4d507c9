"""Layers and images as a test writes them down."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import zstandard

OCI_INDEX = "application/vnd.oci.image.index.v1+json"
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
OCI_CONFIG = "application/vnd.oci.image.config.v1+json"
OCI_LAYER = "application/vnd.oci.image.layer.v1.tar"
MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def entry(
    name: str, content: bytes | None = None, /, **fields: Any
) -> tuple[tarfile.TarInfo, bytes]:
    """A file; or with ``type`` and without content, something else."""
    info = tarfile.TarInfo(name)
    info.mode = 0o755 if fields.get("type") == tarfile.DIRTYPE else 0o644
    info.size = len(content or b"")
    for key, value in fields.items():
        setattr(info, key, value)
    return info, content or b""


def folder(name: str, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    return entry(name, type=tarfile.DIRTYPE, **fields)


def link(name: str, target: str, *, hard: bool = False) -> tuple[tarfile.TarInfo, bytes]:
    kind = tarfile.LNKTYPE if hard else tarfile.SYMTYPE
    return entry(name, type=kind, linkname=target, mode=0o777)


def archive(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, content in entries:
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def digest(content: bytes) -> str:
    return "sha256:" + hashlib.sha256(content).hexdigest()


def pack(tar: bytes, compression: str) -> bytes:
    match compression:
        case "gzip":
            return gzip.compress(tar, mtime=0)
        case "zstd":
            return zstandard.compress(tar)
    return tar


@dataclass
class Image:
    """``blobs`` by digest, ``manifest`` the bytes the name stands for."""

    manifest: bytes
    kind: str = OCI_MANIFEST
    blobs: dict[str, bytes] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        return digest(self.manifest)

    @property
    def layers(self) -> list[str]:
        return [one["digest"] for one in json.loads(self.manifest)["layers"]]


def descriptor(kind: str, content: bytes, **more: Any) -> dict[str, Any]:
    return {"mediaType": kind, "digest": digest(content), "size": len(content), **more}


def image(
    *tars: bytes,
    compression: str = "gzip",
    config: dict[str, Any] | None = None,
    architecture: str = MACHINE,
    diff_ids: Sequence[str] | None = None,
) -> Image:
    """An image of these layers, lowest first. ``diff_ids``: what it claims instead."""
    suffix = {"gzip": "+gzip", "zstd": "+zstd"}.get(compression, "")
    packed = [pack(tar, compression) for tar in tars]
    described = {
        "architecture": architecture,
        "os": "linux",
        "config": config or {},
        "rootfs": {"type": "layers", "diff_ids": list(diff_ids or map(digest, tars))},
    }
    about = json.dumps(described).encode()
    manifest = {
        "schemaVersion": 2,
        "mediaType": OCI_MANIFEST,
        "config": descriptor(OCI_CONFIG, about),
        "layers": [descriptor(OCI_LAYER + suffix, blob) for blob in packed],
    }
    blobs = {digest(blob): blob for blob in (about, *packed)}
    return Image(json.dumps(manifest).encode(), blobs=blobs)


def index(**images: Image) -> Image:
    """An index of images by architecture."""
    entries = [
        descriptor(one.kind, one.manifest, platform={"os": "linux", "architecture": name})
        for name, one in images.items()
    ]
    content = json.dumps({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries})
    blobs = {one.digest: one.manifest for one in images.values()}
    for one in images.values():
        blobs |= one.blobs
    return Image(content.encode(), OCI_INDEX, blobs)


def write_layout(root: Path, images: dict[str, Image]) -> Path:
    (root / "blobs/sha256").mkdir(parents=True)
    (root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    entries = []
    for tag, one in images.items():
        for name, content in {**one.blobs, one.digest: one.manifest}.items():
            (root / "blobs/sha256" / name.removeprefix("sha256:")).write_bytes(content)
        names = {"org.opencontainers.image.ref.name": tag}
        entries.append(descriptor(one.kind, one.manifest, annotations=names))
    (root / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": entries}))
    return root


def write_saved(path: Path, tars: Sequence[bytes], name: str, config: dict[str, Any]) -> Path:
    """As ``docker save`` writes one image; a layer that occurs again is a link."""
    described = {
        "architecture": MACHINE,
        "os": "linux",
        "config": config,
        "rootfs": {"type": "layers", "diff_ids": [digest(tar) for tar in tars]},
    }
    about = json.dumps(described).encode()
    places: dict[bytes, str] = {}
    entries, names = [entry("config.json", about)], []
    for number, tar in enumerate(tars):
        place = f"layer{number}/layer.tar"
        names.append(place)
        if tar in places:
            entries.append(link(place, f"../{places[tar]}"))
        else:
            places[tar] = place
            entries.append(entry(place, tar))
    listed = [{"Config": "config.json", "RepoTags": [name], "Layers": names}]
    entries.append(entry("manifest.json", json.dumps(listed).encode()))
    path.write_bytes(archive(*entries))
    return path
