"""What is known of a snapshot, in two files: ``manifest.json``, and ``private.json`` (0600) with
what nobody but this node may see.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aenv.models.errors import EngineError, ImageUnusableError, SnapshotDamagedError
from aenv.models.sandboxes import Resources
from aenv.models.snapshots import Fingerprint
from aenv.models.templates import GuestFacts
from aenv.node.engine import MemoryImage

VERSION = 2
MANIFEST, PRIVATE, CHECKSUM, MEMORY = "manifest.json", "private.json", "checksum", "memory"
_DAMAGE = (OSError, ValueError, KeyError, TypeError, AttributeError)
_MIGRATIONS: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {
    1: lambda found: {**found, "layers": [], "own_disk": True},
}
"""Version → what makes the next version's fields of it."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """``memory``: the size of each file of the memory image, empty without memory. ``log_seq``: how
    much of the guest's log was fetched before. ``facts``: what its guest is told in place of what
    the template says. ``layers``: keys of the sealed layers over the template's, topmost first;
    ``own_disk``: whether there is a disk image over them.
    """

    id: str
    template: str
    template_digest: str
    resources: Resources
    created_at: float
    engine: str
    engine_version: str = ""
    cpu_features: str = ""
    memory: dict[str, int] = field(default_factory=dict)
    parent: str | None = None
    log_seq: int = 0
    facts: GuestFacts | None = None
    layers: tuple[str, ...] = ()
    own_disk: bool = True

    @property
    def has_memory(self) -> bool:
        return bool(self.memory)

    @property
    def fingerprint(self) -> Fingerprint | None:
        if not self.has_memory:
            return None
        return Fingerprint(self.engine, self.engine_version, self.cpu_features, self.resources)

    def memory_image(self, folder: Path) -> MemoryImage:
        """Raises ImageUnusableError when a file is missing or has another size than it had."""
        image = folder / MEMORY
        for name, size in self.memory.items():
            try:
                found = (image / name).stat().st_size
            except OSError as error:
                raise ImageUnusableError(f"{name} of the memory image: {error.strerror}") from error
            if found != size:
                raise ImageUnusableError(
                    f"{name} of the memory image has {found} bytes instead of {size}"
                )
        return MemoryImage(image, self.engine, self.engine_version, self.cpu_features)


@dataclass(frozen=True, slots=True, repr=False)
class Private:
    """``host_secret``: what the agent in the memory image demands of its host. ``env_vars``: of the
    sandbox, all of them if ``env_known``; ``secret_env`` names those that forks are not given.
    """

    host_secret: str
    env_vars: dict[str, str]
    secret_env: frozenset[str] = frozenset()
    env_known: bool = True

    def env_of(self, *, same_life: bool) -> dict[str, str]:
        if same_life:
            return dict(self.env_vars)
        return {n: value for n, value in self.env_vars.items() if n not in self.secret_env}


def write(folder: Path, manifest: Manifest, private: Private) -> None:
    _write_private(folder / MANIFEST, manifest_json(manifest))
    _write_private(folder / PRIVATE, private_json(private))


def read(folder: Path) -> Manifest:
    """Raises SnapshotDamagedError, EngineError when another version wrote it."""
    try:
        return parsed(json.loads((folder / MANIFEST).read_text()))
    except _DAMAGE as error:
        raise _damaged(folder / MANIFEST, error) from error


def read_private(folder: Path) -> Private:
    """Raises SnapshotDamagedError."""
    try:
        return parsed_private(json.loads((folder / PRIVATE).read_text()))
    except _DAMAGE as error:
        raise _damaged(folder / PRIVATE, error) from error


def manifest_json(manifest: Manifest) -> dict[str, Any]:
    return {"version": VERSION, **asdict(manifest)}


def private_json(private: Private) -> dict[str, Any]:
    return {
        "version": VERSION,
        "host_secret": private.host_secret,
        "env_vars": private.env_vars,
        "secret_env": sorted(private.secret_env),
        "env_known": private.env_known,
    }


def parsed(found: dict[str, Any]) -> Manifest:
    """Of any version known here. EngineError, or what malformed JSON raises."""
    found = migrated(found)
    found.pop("version")
    resources = Resources(**found.pop("resources"))
    facts = GuestFacts.from_json(found.pop("facts", None))
    layers = tuple(found.pop("layers"))
    return Manifest(resources=resources, facts=facts, layers=layers, **found)


def parsed_private(found: dict[str, Any]) -> Private:
    secret, variables = str(found["host_secret"]), dict(found["env_vars"])
    known = bool(found.get("env_known", True))
    return Private(secret, variables, frozenset(found["secret_env"]), known)


def migrated(found: dict[str, Any]) -> dict[str, Any]:
    """The manifest as this version writes it. EngineError when it is of one not known here."""
    found = dict(found)
    while (version := found["version"]) != VERSION:
        if version not in _MIGRATIONS:
            raise EngineError(
                f"snapshot {found.get('id')} has a manifest of version {version}, and this server "
                f"knows up to {VERSION}: start it with the newer server that wrote it"
            )
        found = {**_MIGRATIONS[version](found), "version": version + 1}
    return found


def memory_files(image: Path) -> dict[str, int]:
    """Size of every file below ``image``, by its path relative to it."""
    return {
        str(path.relative_to(image)): path.stat().st_size
        for path in sorted(image.rglob("*"))
        if path.is_file()
    }


def _damaged(path: Path, error: Exception) -> SnapshotDamagedError:
    return SnapshotDamagedError(
        f"{path.name} of snapshot {path.parent.name} is damaged ({error!r}): its memory is lost, "
        "and what starts from it boots from its disk"
    )


def _write_private(path: Path, content: dict[str, Any]) -> None:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w") as file:
        json.dump(content, file)
