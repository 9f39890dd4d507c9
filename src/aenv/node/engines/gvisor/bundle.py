"""The files of one machine in the run folder."""

from __future__ import annotations

import json
import shutil
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aenv.models.errors import EngineError
from aenv.models.sandboxes import Resources
from aenv.node.engines.gvisor.config import GUEST_FOLDER, shared_memory_mb

_FROZEN = "frozen"


@dataclass(frozen=True, slots=True)
class Bundle:
    """Where one machine's files are. ``runsc_root`` is shared by all machines of the instance."""

    sandbox_id: str
    folder: Path
    runsc_root: Path

    @property
    def config(self) -> Path:
        return self.folder / "config.json"

    @property
    def boot_id(self) -> Path:
        return self.folder / "boot_id"

    @property
    def console(self) -> Path:
        return self.folder / "console"

    @property
    def panic_log(self) -> Path:
        return self.folder / "panic.log"

    @property
    def runsc_log(self) -> Path:
        return self.folder / "runsc.log"

    @property
    def frozen(self) -> Path:
        """Absent while the machine runs; else it holds how far a freeze or a thaw has come."""
        return self.folder / "frozen"

    @property
    def facts(self) -> Path:
        return self.folder / "facts.json"

    @property
    def state(self) -> Path:
        return self.runsc_root / f"{self.sandbox_id}_sandbox:{self.sandbox_id}.state"

    def make(self, boot_id: str | None = None) -> None:
        """The folder, a boot id of its own (forks must not share one), and room for runsc.

        ``boot_id``: that of the life that goes on. FileExistsError if the machine exists.
        """
        self.runsc_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700)
        self.boot_id.write_text(boot_id or f"{uuid.uuid4()}\n")

    def write_config(self, config: dict[str, Any]) -> None:
        self.config.write_text(json.dumps(config))

    def write_facts(self, facts: Facts) -> None:
        self.facts.write_text(json.dumps(asdict(facts)))

    def read_facts(self) -> Facts:
        """What was written at boot; defaults where a crash left nothing."""
        try:
            stored = json.loads(self.facts.read_text())
            return Facts(
                resources=Resources(**stored["resources"]),
                nameservers=tuple(stored["nameservers"]),
                runsc=stored["runsc"],
                volumes=dict(stored.get("volumes", {})),
            )
        except (OSError, ValueError, TypeError, KeyError):
            return Facts()

    def read_guest_folder(self) -> Path:
        """The host's side of ``/.aenv``. Raises EngineError when the configuration is gone."""
        try:
            mounts = json.loads(self.config.read_text())["mounts"]
            return Path(next(m["source"] for m in mounts if m["destination"] == GUEST_FOLDER))
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            raise EngineError(f"{self.config} does not tell its guest folder: {error!r}") from error

    def read_shared_memory_mb(self) -> int:
        """The size of ``/dev/shm``; 0 without one. Raises EngineError as above."""
        try:
            return shared_memory_mb(json.loads(self.config.read_text()))
        except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
            raise EngineError(f"{self.config} does not tell its mounts: {error!r}") from error

    def read_frozen(self) -> bool | None:
        """None: who froze or thawed the machine did not come to an end with it."""
        try:
            return True if self.frozen.read_text() == _FROZEN else None
        except FileNotFoundError:
            return False

    def mark_frozen(self, frozen: bool | None) -> None:
        """None before it is frozen or thawed, what it is afterwards."""
        if frozen is False:
            self.frozen.unlink(missing_ok=True)
        else:
            self.frozen.write_text(_FROZEN if frozen else "in transit")

    def read_state(self) -> dict[str, Any]:
        """runsc's own record of the container: pids and the control socket; empty if there is
        none.
        """
        try:
            state = json.loads(self.state.read_text())
        except (OSError, ValueError):
            return {}
        return state if isinstance(state, dict) else {}

    def read_control_path(self) -> str:
        """The control socket; runsc moves it elsewhere when its root has a long name."""
        sandbox = self.read_state().get("sandbox")
        path = sandbox.get("controlSocketPath") if isinstance(sandbox, dict) else None
        return str(path or self.runsc_root / f"runsc-{self.sandbox_id}.sock")

    def text(self, path: Path, limit: int = 4096) -> str:
        try:
            with path.open("rb") as file:
                return file.read(limit).decode(errors="replace").strip()
        except OSError:
            return ""

    def remove(self) -> None:
        """Everything, also what runsc left in its root."""
        for name in (
            self.state.name,
            self.state.with_suffix(".lock").name,
            f"runsc-{self.sandbox_id}.sock",
        ):
            (self.runsc_root / name).unlink(missing_ok=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a restarted server must know of a machine beside what runsc keeps. ``volumes``: those it
    may write to, the store's name of each by id.
    """

    resources: Resources = field(default_factory=Resources)
    nameservers: tuple[str, ...] = ()
    runsc: str = ""
    volumes: dict[str, str] = field(default_factory=dict)
