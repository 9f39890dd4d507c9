"""What a store finds in its folder when it opens: whole snapshots, and what damage has left of
others. Blocking.

Of a snapshot whose files are damaged the disk is still there, in its engine's pool: it is not lost
to those who know what else it takes to start from it.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from aenv.models.errors import EngineError, SnapshotDamagedError
from aenv.models.sandboxes import Resources
from aenv.node.snapshots import checksums, manifest
from aenv.node.snapshots.manifest import Manifest, Private

logger = logging.getLogger(__name__)
_NOTHING = Private("", {})


@dataclass(slots=True, eq=False)
class Stored:
    """A snapshot that is there. ``users``: how many start from it now. ``damage``: why it has no
    memory any more.
    """

    folder: Path
    manifest: Manifest
    private: Private
    checksum: str = ""
    users: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """What whoever starts from a snapshot knows of it without its manifest."""

    template: str
    resources: Resources
    engine: str


def scan(folder: Path, keep: frozenset[str]) -> tuple[dict[str, Stored], dict[str, EngineError]]:
    """Snapshots by id, and those that cannot be read; what is not in ``keep`` is removed."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found: dict[str, Stored] = {}
    unreadable: dict[str, EngineError] = {}
    for place in folder.iterdir():
        if place.name not in keep:
            shutil.rmtree(place, ignore_errors=True)
            continue
        try:
            found[place.name] = _read(place)
        except EngineError as error:
            logger.error("%s; it is left alone", error)
            unreadable[place.name] = error
    return found, unreadable


def salvaged(folder: Path, known: Known, damage: EngineError) -> Stored:
    """A snapshot without a manifest, of its disk alone."""
    facts = Manifest(
        id=folder.name,
        template=known.template,
        template_digest="",
        resources=known.resources,
        created_at=folder.stat().st_mtime,
        engine=known.engine,
    )
    return Stored(folder, facts, _NOTHING, damage=damage.message)


def _read(folder: Path) -> Stored:
    facts = manifest.read(folder)
    try:
        private = manifest.read_private(folder)
    except SnapshotDamagedError as error:
        logger.error("%s", error)
        return Stored(folder, replace(facts, memory={}), _NOTHING, damage=error.message)
    return Stored(folder, facts, private, checksums.read(folder))
