"""The ``base`` template: Debian bookworm from the machine's mirrors, with what agents expect."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from email.utils import parsedate_to_datetime
from pathlib import Path

from aenv.models.errors import DiskFullError, TemplateBuildError
from aenv.node.images import bootstrap, users
from aenv.node.images.apt_sources import debian_sources
from aenv.node.images.erofs import pack
from aenv.node.images.recipes import (
    Built,
    Recipe,
    Report,
    fingerprint,
    install_overlay,
    overlay_files,
)

SUITE = "bookworm"
PACKAGES = (
    "bash",
    "ca-certificates",
    "coreutils",
    "curl",
    "gcc",
    "git",
    "iproute2",
    "less",
    "libc6-dev",
    "make",
    "nano",
    "ncurses-bin",
    "netbase",
    "nodejs",
    "procps",
    "python-is-python3",
    "python3",
    "python3-pip",
    "python3-venv",
    "sudo",
    "tzdata",
    "unzip",
    "xz-utils",
)
_REVISION = "2"
"""Raise it when this module changes what it makes and no other part of the digest does."""
_GUEST_PYTHON = "/.aenv/python\n"
"""The end of the search path, where guests find aenv if they have none of their own."""
_SPACE_NEEDED = 3 << 30
_PASSWORDS_CHANGED = "19700"
"""Days since 1970, in ``/etc/shadow``: fixed, for reproducible bytes; the passwords are locked."""
_LEFTOVERS = (
    "etc/.pwd.lock",
    "etc/apt/apt.conf.d/99mmdebstrap",
    "etc/apt/sources.list.d/*",
    "etc/*-",
    "etc/machine-id",
    "etc/skel/.*",
    "root/.profile",
    "root/.bashrc",
    "run/*",
    "tmp/*",
    "usr/lib/python3*/EXTERNALLY-MANAGED",
    "var/cache/apt/*",
    "var/cache/debconf/*-old",
    "var/cache/ldconfig/aux-cache",
    "var/lib/apt/lists/*",
    "var/lib/dpkg/*-old",
    "var/lib/systemd",
    "var/log/*",
)


class BaseRecipe(Recipe):
    """``cache`` is the host-wide cache folder."""

    name = "base"

    def __init__(self, cache: Path) -> None:
        self._cache = cache

    def digest(self) -> str:
        """Of the recipe, not of the mirrors' state: the record names the packages' versions."""
        overlay = [f"{relative}\0".encode() + content for relative, content in overlay_files()]
        options = [
            *bootstrap.LEAVE_OUT,
            users.SUDOERS,
            users.HOSTS,
            users.ENVIRONMENT,
            _GUEST_PYTHON,
        ]
        machine = os.uname().machine
        return fingerprint(_REVISION, self.name, machine, SUITE, *PACKAGES, *options, *overlay)

    def build(self, workspace: Path, report: Report) -> Built:
        _require_space(workspace)
        root = workspace / "root"
        archives = self._cache / "apt" / SUITE
        bootstrap.mmdebstrap(
            root,
            suite=SUITE,
            packages=PACKAGES,
            sources=debian_sources(SUITE, os.environ),
            archives=archives,
            scratch=workspace / "tmp",
            acquire=_acquire_options(),
            report=lambda fraction, step: report(fraction * 0.85, step),
        )
        report(0.86, "configuring the system")
        epoch = _archive_time(root)
        packages = _installed(root)
        _configure(root)
        report(0.88, "packing the image")
        image = workspace / "rootfs.erofs"
        pack(root, image, epoch)
        report(0.98, "sealing the image")
        _prune(archives, packages)
        shutil.rmtree(root)
        return Built(image, packages=packages)


def _require_space(workspace: Path) -> None:
    free = shutil.disk_usage(workspace).free
    if free < _SPACE_NEEDED:
        raise DiskFullError(
            f"{workspace.parent} has {free >> 20} MiB free, a build needs {_SPACE_NEEDED >> 20}; "
            "free some space or set AENV_CACHE_DIR to a larger disk"
        )


def _acquire_options() -> list[str]:
    """How this machine's apt reaches its mirrors (proxies, certificates), for the build only."""
    try:
        dump = subprocess.run(
            ["apt-config", "dump"], check=True, capture_output=True, text=True, timeout=30
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    lines = [line.rstrip(";") for line in dump.splitlines()]
    wanted = re.compile(r"(Acquire::(http|https|Check-|Max-|ForceIPv)\S*)\s+\"[^\"]+\"")
    return [line for line in lines if wanted.fullmatch(line)]


def _archive_time(root: Path) -> int:
    """When the archive was last changed: the newest date of its release files."""
    dates = [
        parsedate_to_datetime(match[1]).timestamp()
        for path in (root / "var/lib/apt/lists").glob("*Release")
        if (match := re.search(r"^Date: (.+)$", path.read_text(errors="replace"), re.MULTILINE))
    ]
    if not dates:
        raise TemplateBuildError("the mirrors' release files carry no date")
    return int(max(dates))


def _installed(root: Path) -> dict[str, str]:
    return dict(
        re.findall(r"^Package: (\S+)\n(?:.+\n)*?Version: (\S+)", _status(root), re.MULTILINE)
    )


def _status(root: Path) -> str:
    return (root / "var/lib/dpkg/status").read_text()


def _configure(root: Path) -> None:
    vendor = _vendor_sources(root)
    _clean(root)
    install_overlay(root)
    _write(root / "etc/apt/sources.list", vendor)
    _write(root / "etc/hosts", users.HOSTS)
    _write(root / "etc/hostname", "sandbox\n")
    _write(root / "etc/resolv.conf", "")
    _write(root / "etc/environment", users.ENVIRONMENT)
    _write(root / "etc/default/locale", users.ENVIRONMENT)
    _write(root / "etc/sudoers", users.SUDOERS, 0o440)
    _write(root / "usr/lib/python3/dist-packages/aenv.pth", _GUEST_PYTHON)
    for source in sorted((root / "etc/skel").iterdir()):
        shutil.copy(source, root / "root" / source.name)
    _add_user(root)


def _vendor_sources(root: Path) -> str:
    """Debian's own sources, as its apt package documents them: the machine's mirrors stay out."""
    example = root / "usr/share/doc/apt/examples/sources.list"
    lines = example.read_text().splitlines()
    kept = [line.partition(" main")[0] + " main" for line in lines if line.startswith("deb ")]
    if not kept:
        raise TemplateBuildError("the apt package documents no default sources")
    return "\n".join(kept) + "\n"


def _clean(root: Path) -> None:
    for pattern in _LEFTOVERS:
        for path in root.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    for folder in ("var/cache/apt/archives/partial", "var/lib/apt/lists/partial", "var/log/apt"):
        (root / folder).mkdir(parents=True, exist_ok=True)


def _add_user(root: Path) -> None:
    command = ["useradd", "--create-home", "--uid", str(users.UID), "--groups", "sudo"]
    command += ["--shell", "/bin/bash", users.USER]
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"}
    try:
        subprocess.run(
            ["chroot", str(root), *command],
            check=True,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
        )
    except subprocess.SubprocessError as error:
        raise TemplateBuildError(f"useradd failed: {getattr(error, 'stderr', error)}") from error
    (root / "home" / users.USER).chmod(0o755)
    shadow = root / "etc/shadow"
    lines = [line.split(":") for line in shadow.read_text().splitlines()]
    dated = [":".join([*line[:2], _PASSWORDS_CHANGED, *line[3:]]) + "\n" for line in lines]
    shadow.write_text("".join(dated))
    for path in (root / "etc").glob("*-"):
        path.unlink()
    (root / "etc/.pwd.lock").unlink(missing_ok=True)


def _write(path: Path, content: str, mode: int = 0o644) -> None:
    path.unlink(missing_ok=True)
    path.write_text(content)
    path.chmod(mode)


def _prune(archives: Path, packages: dict[str, str]) -> None:
    """Keep only the packages of this build in the cache."""
    used = {f"{package}_{version.replace(':', '%3a')}_" for package, version in packages.items()}
    for path in archives.glob("*.deb"):
        if path.name.rpartition("_")[0] + "_" not in used:
            path.unlink()
