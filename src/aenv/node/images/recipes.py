"""The recipe port: what an image is made from. One module per source; ``builtin`` names ours."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Protocol

from aenv.models.templates import ImageFacts, PartProgress
from aenv.node.engine import Bind

Report = Callable[[float, str], None]
"""Called with the fraction done (0..1) and the step that runs now."""


class Reporter(Protocol):
    """A :data:`Report` that is told of parts, too."""

    def __call__(
        self, fraction: float, step: str, parts: tuple[PartProgress, ...] = ()
    ) -> None: ...


OVERLAY = Path(__file__).parent / "rootfs"
"""Files that every root file system of ours gets: the fork-free login scripts."""


@dataclass(frozen=True, slots=True)
class Built:
    """What a recipe made in its workspace: one EROFS ``layer`` file, or a plain directory. Or else
    ``layers``, keys on the shelf of layers, topmost first; then ``recipe`` and ``digest`` (64 hex
    digits) are what only the build finds out.

    A relative source of a bind is inside the workspace, and later inside the image's folder.
    """

    layer: Path | None
    binds: tuple[Bind, ...] = ()
    packages: dict[str, str] = field(default_factory=dict)
    layers: tuple[str, ...] = ()
    facts: ImageFacts | None = None
    recipe: str = ""
    digest: str = ""


class Recipe(ABC):
    """How one image is made. ``digest`` changes whenever the result would."""

    name: str
    reproducible: ClassVar[bool] = True
    isolated: ClassVar[bool] = True
    """Built in a process of its own (long, needs root); otherwise in a thread of the caller."""
    host_wide: ClassVar[bool] = True
    """Kept in the host-wide cache; otherwise in the run folder of this server."""
    moves: ClassVar[bool] = False
    """Its name may come to mean another image: it can be built anew although it is there."""
    keep: ClassVar[int] = 2
    """Images that stay: this recipe's, and the one before that a server not yet updated may use."""

    @property
    def key(self) -> str:
        """The name as a part of file names."""
        return self.name

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the process that builds it has to be told beside its name."""
        return ()

    @abstractmethod
    def digest(self) -> str:
        """The recipe's digest, 64 hex digits."""

    @abstractmethod
    def build(self, workspace: Path, report: Reporter) -> Built:
        """Make the image inside ``workspace`` (empty, removed by the caller). Blocking."""

    def arrange(self, recipe_digest: str) -> None:  # noqa: B027 - most names need no record
        """After the image stands on its shelf: the name means this one from now on."""

    def forget(self) -> None:  # noqa: B027
        """The name means nothing any more."""


def overlay_files() -> Iterator[tuple[Path, bytes]]:
    """The overlay's files: path relative to the root, content; in a fixed order."""
    for path in sorted(OVERLAY.rglob("*")):
        if path.is_file():
            yield path.relative_to(OVERLAY), path.read_bytes()


def install_overlay(root: Path) -> None:
    for relative, content in overlay_files():
        target = root / relative
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        target.write_bytes(content)
        target.chmod(0o644)


def fingerprint(*parts: str | bytes) -> str:
    """One digest of many parts; lengths are hashed too, so no two lists of parts look alike."""
    total = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        total.update(len(data).to_bytes(8, "big"))
        total.update(data)
    return total.hexdigest()
