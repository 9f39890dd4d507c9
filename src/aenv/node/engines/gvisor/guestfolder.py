"""The files that the guest sees at ``/.aenv``, and its ``/tmp``."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import aenv
from aenv.models.errors import HostSetupError, InvalidRequestError
from aenv.node.host.confined import make_folders

_CA_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_GUEST = Path(aenv.__file__).with_name("guest")
_PYTHON = "python/aenv"
_NO_FOLLOW = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def guest_folder(store: Path, agent: Path, *, host_ca: bool) -> Path:
    """A read-only folder with the agent, the guest's part of aenv for Python (and the host's CA
    bundle), shared by machines of one kind.

    It has a name made of its content's identity, so a new agent gets a new folder and running
    machines keep theirs.
    """
    ca = _ca_bundle() if host_ca else None
    sources = {"agent": agent, **_python(), **({"ca.crt": ca} if ca else {})}
    target = store / _identity(sources)
    if target.exists():
        return target
    store.mkdir(mode=0o755, parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(prefix=".new-", dir=store))
    try:
        for name, source in sources.items():
            copy = partial / name
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
            copy.chmod(0o755 if name == "agent" else 0o644)
        for folder in (partial, *filter(Path.is_dir, partial.rglob("*"))):
            folder.chmod(0o755)
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


def make_mount_points(root: Path, paths: Sequence[str]) -> None:
    """Where volumes will be seen. gVisor makes what is missing, but for root alone to enter.

    Links in ``root`` lead nowhere but into it. InvalidRequestError when a path leads through a
    file.
    """
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for path in paths:
            try:
                make_folders(handle, path.encode())
            except OSError as error:
                raise InvalidRequestError(
                    f"volumeMounts: {path!r} cannot be made in this template: {error.strerror}"
                ) from error
    finally:
        os.close(handle)


def _make(parent: int, name: str) -> None:
    try:
        os.mkdir(name, dir_fd=parent)
    except FileExistsError:
        return
    os.chmod(name, 0o1777, dir_fd=parent)  # noqa: S103  /tmp is everybody's


def _python() -> dict[str, Path]:
    """``import aenv`` for guests: :mod:`aenv.guest`, below a package that holds nothing else."""
    modules = {f"{_PYTHON}/guest/{path.name}": path for path in sorted(_GUEST.glob("*.py"))}
    return {f"{_PYTHON}/__init__.py": modules.pop(f"{_PYTHON}/guest/shim.py"), **modules}


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
