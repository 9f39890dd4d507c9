"""The files of one machine in the run folder, and those the guest sees at ``/.aenv``."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
import uuid
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from aenv.models.errors import HostSetupError
from aenv.models.sandboxes import Resources

_CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_NO_FOLLOW = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


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
        """Exists while the machine is frozen."""
        return self.folder / "frozen"

    @property
    def facts(self) -> Path:
        return self.folder / "facts.json"

    @property
    def state(self) -> Path:
        return self.runsc_root / f"{self.sandbox_id}_sandbox:{self.sandbox_id}.state"

    def make(self) -> None:
        """The folder, a boot id of its own (forks must not share one), and room for runsc.

        FileExistsError if the machine exists.
        """
        self.runsc_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.folder.mkdir(mode=0o700)
        self.boot_id.write_text(f"{uuid.uuid4()}\n")

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
            )
        except (OSError, ValueError, TypeError, KeyError):
            return Facts()

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
    """What a restarted server must know of a machine beside what runsc keeps."""

    resources: Resources = field(default_factory=Resources)
    nameservers: tuple[str, ...] = ()
    runsc: str = ""


def guest_folder(store: Path, agent: Path, *, host_ca: bool) -> Path:
    """A read-only folder with the agent (and the host's CA bundle), shared by machines of one kind.

    It has a name made of its content's identity, so a new agent gets a new folder and running
    machines keep theirs.
    """
    ca = _ca_bundle() if host_ca else None
    sources = {"agent": agent, **({"ca.crt": ca} if ca else {})}
    target = store / _identity(sources)
    if target.exists():
        return target
    store.mkdir(mode=0o755, parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".new-", dir=store))
    try:
        for name, source in sources.items():
            shutil.copyfile(source, partial / name)
            (partial / name).chmod(0o755 if name == "agent" else 0o644)
        partial.chmod(0o755)
        partial.rename(target)
    except OSError:
        if not target.exists():  # else another boot was first
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return target


def keep_tmp_on_disk(root: Path) -> None:
    """Give ``/tmp`` an entry: over an empty one gVisor mounts a tmpfs, which eats the guest's
    memory.

    ``root`` may hold hostile links; none is followed.
    """
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _make(handle, "tmp")
        inside = os.open("tmp", _NO_FOLLOW, dir_fd=handle)
        try:
            _make(inside, ".X11-unix")
        finally:
            os.close(inside)
    except (NotADirectoryError, OSError):
        return  # a link or a file: the image's own business
    finally:
        os.close(handle)


def _make(parent: int, name: str) -> None:
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        return
    os.chmod(name, 0o1777, dir_fd=parent)  # noqa: S103  /tmp is everybody's


def _ca_bundle() -> Path:
    for candidate in map(Path, _CA_BUNDLES):
        if candidate.is_file():
            return candidate
    raise HostSetupError(
        "no CA bundle on this host to show to guests;"
        " install ca-certificates or turn inject_host_ca off"
    )


def _identity(sources: dict[str, Path]) -> str:
    digest = hashlib.sha256()
    for name, source in sources.items():
        stat = source.stat()
        digest.update(f"{name}:{source}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns};".encode())
    return digest.hexdigest()[:16]
