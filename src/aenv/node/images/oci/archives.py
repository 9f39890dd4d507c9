"""Images from this host's files: OCI layout folders, and archives of ``docker save``."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import stat
import tarfile
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from aenv.models.errors import InvalidRequestError, NotFoundError
from aenv.models.references import ImageReference
from aenv.node.images.oci import manifests
from aenv.node.images.oci.manifests import BadImageError, Descriptor
from aenv.node.images.oci.sources import Received, Source, check_digest

KINDS = ("oci", "docker-archive")
_REF_NAME = "org.opencontainers.image.ref.name"
_IMAGE_NAME = "io.containerd.image.name"
_CHUNK = 1 << 20
_MOST_MEMBERS = 100_000
_LINKS = 8


def open_path(text: str) -> Source:
    """``oci:FOLDER[:TAG]`` or ``docker-archive:FILE[:NAME]``. Raises InvalidRequestError."""
    kind, _, rest = text.partition(":")
    if kind not in KINDS or not rest:
        raise InvalidRequestError(f"{text[:200]!r} is neither oci:FOLDER nor docker-archive:FILE")
    path, name = Path(rest), None
    if not path.exists() and ":" in rest:
        folder, _, name = rest.partition(":")
        path = Path(folder)
    if kind == "oci":
        return LayoutSource(path, name)
    return ArchiveSource(path, name)


def whole_source(text: str) -> str:
    """With an absolute path, for a process in another folder."""
    kind, _, rest = text.partition(":")
    return f"{kind}:{Path(rest).absolute()}"


def default_name(text: str) -> str:
    """What the image is called in there, else after the folder or file. Blocking."""
    source = open_path(text)
    if isinstance(source, ArchiveSource):
        names = source.names() if source.name is None else [source.name]
        return ImageReference.parse(names[0] if names else source.path.stem.lower()).name
    assert isinstance(source, LayoutSource)
    return ImageReference.parse(f"{source.path.name.lower()}:{source.tag or 'latest'}").name


class LayoutSource(Source):
    """A folder as the OCI image layout specification has it. ``tag`` picks one of several."""

    def __init__(self, folder: Path, tag: str | None = None) -> None:
        self.shown = f"oci:{folder}" + (f":{tag}" if tag else "")
        self.path = folder
        self.tag = tag

    async def top(self) -> tuple[bytes, str]:
        content = await asyncio.to_thread(self._small, self.path / "index.json")
        index = manifests.read(manifests.Index, content, self.shown)
        found = [one for one in index.manifests if self.tag in (None, _tag_of(one))]
        if not found:
            raise NotFoundError(f"{self.shown}: there is no such image; it has {_names(index)}")
        if len(found) > 1 and any(one.platform is None for one in found):
            raise BadImageError(f"{self.shown} holds several images: {_names(index)}; name one")
        if len(found) > 1:
            return content, manifests.INDEXES[0]
        content = await self.document(found[0], manifests.MOST_MANIFEST)
        return content, manifests.type_of(content, found[0].media_type)

    async def document(self, descriptor: Descriptor, limit: int) -> bytes:
        content = await asyncio.to_thread(self._small, self._place(descriptor), limit)
        return check_digest(content, descriptor, self.shown)

    async def blob(self, descriptor: Descriptor, scratch: Path, received: Received) -> Path:
        path = self._place(descriptor)
        found = await asyncio.to_thread(self._digest, path)
        if found != descriptor.digest:
            raise BadImageError(f"{self.shown} holds other bytes than {descriptor.digest[:19]}…")
        received(descriptor.size)
        return path

    def _place(self, descriptor: Descriptor) -> Path:
        return self.path / "blobs" / descriptor.digest.replace(":", "/")

    def _small(self, path: Path, limit: int = manifests.MOST_MANIFEST) -> bytes:
        with self._open(path) as file:
            content = file.read(limit + 1)
        if len(content) > limit:
            raise BadImageError(f"{path} is larger than {limit} bytes")
        return content

    def _digest(self, path: Path) -> str:
        with self._open(path) as file:
            return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]

    def _open(self, path: Path) -> BinaryIO:
        return _open_plain(path, self.shown)


class ArchiveSource(Source):
    """A tar of ``docker save`` or ``podman save``: its layers are known by what they unpack to."""

    def __init__(self, path: Path, name: str | None = None) -> None:
        self.shown = f"docker-archive:{path}" + (f":{name}" if name else "")
        self.path = path
        self.name = name
        self._members: dict[str, tarfile.TarInfo] = {}
        self._places: dict[str, str] = {}

    async def top(self) -> tuple[bytes, str]:
        return await asyncio.to_thread(self._manifest), manifests.MANIFESTS[0]

    async def document(self, descriptor: Descriptor, limit: int) -> bytes:
        content = await asyncio.to_thread(self._read, self._places[descriptor.digest], limit)
        return check_digest(content, descriptor, self.shown)

    async def blob(self, descriptor: Descriptor, scratch: Path, received: Received) -> Path:
        await asyncio.to_thread(self._extract, self._places[descriptor.digest], scratch, received)
        return scratch

    def names(self) -> list[str]:
        """What the images in it are called. Blocking."""
        self._scan()
        return [tag for entry in self._entries() for tag in entry.get("RepoTags") or []]

    def _manifest(self) -> bytes:
        """The manifest such an archive lacks, made of what it has. A layer's ``digest`` is the one
        the configuration gives to its content, and checked when that is unpacked.
        """
        self._scan()
        entry = self._chosen()
        try:
            config = self._read(entry["Config"], manifests.MOST_CONFIG)
            layers = [str(name) for name in entry["Layers"]]
            described = manifests.read(manifests.Config, config, self.shown)
            diff_ids = described.rootfs.diff_ids
            manifests.check_config(described, len(layers), self.shown)
        except (KeyError, TypeError) as error:
            raise BadImageError(f"{self.shown}: its manifest.json is malformed") from error
        own = manifests.digest_of(config)
        self._places = {own: entry["Config"], **dict(zip(diff_ids, layers, strict=True))}
        parts = [
            {
                "mediaType": "application/vnd.oci.image.layer.v1.tar",
                "digest": digest,
                "size": self._member(name).size,
            }
            for digest, name in zip(diff_ids, layers, strict=True)
        ]
        about = {"mediaType": "application/vnd.oci.image.config.v1+json", "digest": own}
        made = {"config": {**about, "size": len(config)}, "layers": parts}
        return json.dumps(made, sort_keys=True).encode()

    def _scan(self) -> None:
        if self._members:
            return
        try:
            with tarfile.open(self.path, "r:") as archive:
                for number, member in enumerate(archive):
                    if number > _MOST_MEMBERS:
                        raise BadImageError(f"{self.shown} has more than {_MOST_MEMBERS} entries")
                    self._members[str(PurePosixPath(member.name))] = member
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.path}: there is no such file") from error
        except (tarfile.TarError, OSError, ValueError) as error:
            raise BadImageError(f"{self.shown} is no archive of docker save: {error}") from error

    def _entries(self) -> list[dict[str, Any]]:
        try:
            found = json.loads(self._read("manifest.json", manifests.MOST_MANIFEST))
        except ValueError as error:
            raise BadImageError(f"{self.shown}: its manifest.json is malformed") from error
        if not isinstance(found, list) or not all(isinstance(one, dict) for one in found):
            raise BadImageError(f"{self.shown}: its manifest.json is malformed")
        return found

    def _chosen(self) -> dict[str, Any]:
        entries = self._entries()
        fitting = [one for one in entries if self.name is None or self._has(one, self.name)]
        if len(fitting) != 1:
            known = ", ".join(str(one.get("RepoTags")) for one in entries[:20])
            raise BadImageError(f"{self.shown} holds {known}; name one of them")
        return fitting[0]

    def _has(self, entry: dict[str, Any], name: str) -> bool:
        tags = entry.get("RepoTags") or []
        wanted = ImageReference.parse(name).name
        return isinstance(tags, list) and any(
            isinstance(tag, str) and ImageReference.parse(tag).name == wanted for tag in tags
        )

    def _member(self, name: object) -> tarfile.TarInfo:
        """An older ``docker save`` has links to layers it holds once."""
        place = str(PurePosixPath(str(name)))
        for _ in range(_LINKS):
            member = self._members.get(place)
            if member is None:
                break
            if member.isreg():
                return member
            base = os.path.dirname(place) if member.issym() else ""
            place = os.path.normpath(os.path.join(base, member.linkname))
        raise BadImageError(f"{self.shown} lacks the file {str(name)[:200]!r}")

    def _read(self, name: object, limit: int) -> bytes:
        member = self._member(name)
        if member.size > limit:
            raise BadImageError(f"{self.shown}: {str(name)[:200]!r} is larger than {limit} bytes")
        with _open_plain(self.path, self.shown) as file:
            file.seek(member.offset_data)
            return file.read(member.size)

    def _extract(self, name: str, scratch: Path, received: Received) -> None:
        member = self._member(name)
        with _open_plain(self.path, self.shown) as file, scratch.open("wb") as target:
            file.seek(member.offset_data)
            left = member.size
            while left and (chunk := file.read(min(left, _CHUNK))):
                target.write(chunk)
                left -= len(chunk)
                received(member.size - left)
        if left:
            raise BadImageError(f"{self.shown} ends in the middle of {name[:200]!r}")


def _open_plain(path: Path, what: str) -> BinaryIO:
    """A regular file; anything else might keep a reader waiting for ever."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError as error:
        raise NotFoundError(f"{what}: there is no {path}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BadImageError(f"{what}: {path} is no regular file")
    return os.fdopen(descriptor, "rb")


def _tag_of(descriptor: Descriptor) -> str | None:
    return (descriptor.annotations or {}).get(_REF_NAME)


def _names(index: manifests.Index) -> str:
    found = [
        (one.annotations or {}).get(_REF_NAME) or (one.annotations or {}).get(_IMAGE_NAME)
        for one in index.manifests
    ]
    return ", ".join(name or "one without a name" for name in found[:20]) or "none"
