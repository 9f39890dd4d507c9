"""What a node remembers of each sandbox on it beyond its own life: a small file in the run folder.

It goes with the sandbox, and its path is what pins the sandbox's image (``images.pins``). It holds
secrets: the folder and the files are ours alone. Blocking, for microseconds.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from aenv.models.sandboxes import Resources
from aenv.models.templates import GuestFacts

_VERSION = 1


@dataclass(frozen=True, slots=True)
class Memo:
    """``template``, ``digest``: what it was started from. ``ready``: its guest was told who it is.
    ``paused_as``: the snapshot that a frozen machine can be restored from. ``facts``: what its
    guest was told in place of what the template says. ``env_known``: ``env_vars`` are all it has;
    not so of one that was started by a server that remembered none. ``layers``: as in a manifest.
    """

    template: str
    digest: str
    resources: Resources
    env_vars: dict[str, str] = field(default_factory=dict, repr=False)
    secret_env: tuple[str, ...] = ()
    ready: bool = False
    paused_as: str | None = None
    facts: GuestFacts | None = None
    env_known: bool = True
    layers: tuple[str, ...] = ()


class Memos:
    """``gone`` is told of the places of those that were removed."""

    def __init__(self, folder: Path, gone: Callable[[Path], None]) -> None:
        self._folder = folder
        self._gone = gone

    def place(self, sandbox_id: str) -> Path:
        return self._folder / f"{sandbox_id}.json"

    def write(self, sandbox_id: str, memo: Memo) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        staged = self._folder / f".{sandbox_id}"
        handle = os.open(staged, os.O_CREAT | os.O_TRUNC | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump({"version": _VERSION, **asdict(memo)}, file)
        staged.rename(self.place(sandbox_id))

    def read(self, sandbox_id: str) -> Memo | None:
        try:
            found = json.loads(self.place(sandbox_id).read_text())
            if found.pop("version") != _VERSION:
                return None
            found["secret_env"] = tuple(found["secret_env"])
            facts = GuestFacts.from_json(found.pop("facts", None))
            layers = tuple(found.pop("layers", ()))
            resources = Resources(**found.pop("resources"))
            return Memo(resources=resources, facts=facts, layers=layers, **found)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def remove(self, sandbox_id: str) -> None:
        self._remove(self.place(sandbox_id))

    def reap(self, keep: frozenset[str]) -> None:
        """Remove those of sandboxes that are not in ``keep``."""
        if self._folder.is_dir():
            for path in self._folder.iterdir():
                if path.stem not in keep:
                    self._remove(path)

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._gone(path)
