"""The ``host`` template: an instant root file system for development, from the host's ``/usr``.

The lower is a skeleton with what ``/usr`` needs of ``/etc``, chosen by an allow list; ``/usr`` (and
``/lib64`` etc. where the host is not usr-merged) is bound read-only. Nothing private comes along:
no home folders, no ``/opt``, ``/srv`` or ``/var``, no ``/etc/shadow``, keys, mirrors or
credentials. Inside ``/usr/local``, ``etc`` and whatever other users of the host cannot read is
covered by an empty folder; what an operator makes world-readable in ``/usr`` is visible.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

from aenv.models.errors import HostSetupError
from aenv.node.engine import Bind
from aenv.node.images import users
from aenv.node.images.recipes import (
    Built,
    Recipe,
    Report,
    fingerprint,
    install_overlay,
    overlay_files,
)

_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")

_ETC = (
    "alternatives",
    "ca-certificates.conf",
    "debian_version",
    "ethertypes",
    "fonts",
    "java-*",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "login.defs",
    "magic",
    "magic.mime",
    "mime.types",
    "os-release",
    "perl",
    "pki/tls/certs",
    "pki/ca-trust/extracted",
    "protocols",
    "python3*",
    "rpc",
    "services",
    "shells",
    "ssl/certs",
    "ssl/openssl.cnf",
    "terminfo",
)
"""Public configuration that programs in ``/usr`` read; never more than this is copied."""

_PASSWD = f"""\
root:x:0:0:root:/root:/bin/bash
daemon:x:1:1:daemon:/usr/sbin:/usr/sbin/nologin
bin:x:2:2:bin:/bin:/usr/sbin/nologin
sys:x:3:3:sys:/dev:/usr/sbin/nologin
mail:x:8:8:mail:/var/mail:/usr/sbin/nologin
www-data:x:33:33:www-data:/var/www:/usr/sbin/nologin
{users.USER}:x:{users.UID}:{users.UID}::/home/{users.USER}:/bin/bash
nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin
"""

_GROUP = f"""\
root:x:0:
daemon:x:1:
bin:x:2:
sys:x:3:
adm:x:4:
tty:x:5:
disk:x:6:
mail:x:8:
sudo:x:27:{users.USER}
www-data:x:33:
staff:x:50:
{users.USER}:x:{users.UID}:
nogroup:x:65534:
"""

_PAM = """\
auth sufficient pam_permit.so
account sufficient pam_permit.so
session optional pam_permit.so
"""

_FILES = {
    "etc/passwd": _PASSWD,
    "etc/group": _GROUP,
    "etc/hosts": users.HOSTS,
    "etc/hostname": "sandbox\n",
    "etc/resolv.conf": "",
    "etc/nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\nservices: files\n",
    "etc/environment": users.ENVIRONMENT,
    "etc/sudoers": users.SUDOERS,
    "etc/pam.d/sudo": _PAM,
    "etc/pam.d/sudo-i": _PAM,
    "etc/pam.d/su": _PAM,
    "etc/pam.d/su-l": _PAM,
    "etc/pam.d/other": _PAM,
}

_FOLDERS = {
    "dev": 0o755,
    "etc/profile.d": 0o755,
    "etc/sudoers.d": 0o750,
    f"home/{users.USER}": 0o755,
    "media": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "proc": 0o555,
    "root": 0o700,
    "run": 0o755,
    "srv": 0o755,
    "sys": 0o555,
    "tmp": 0o1777,
    "usr": 0o755,
    "var/cache": 0o755,
    "var/lib": 0o755,
    "var/log": 0o755,
    "var/tmp": 0o1777,
}


_EMPTY = Path("rootfs/srv")


class HostRecipe(Recipe):
    """``root`` is the host's root folder; tests give their own."""

    name = "host"
    reproducible: ClassVar[bool] = False
    isolated: ClassVar[bool] = False
    host_wide: ClassVar[bool] = False

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root

    def digest(self) -> str:
        """Changes with this module and with whatever the skeleton copies from the host."""
        parts: list[str | bytes] = [Path(__file__).read_bytes(), Path(users.__file__).read_bytes()]
        parts += [f"{relative}\0".encode() + content for relative, content in overlay_files()]
        parts += [_state(path) for path in self._public_etc()]
        parts += [f"{bind.source} {bind.target}" for bind in self._binds()]
        return fingerprint(*parts)

    def build(self, workspace: Path, report: Report) -> Built:
        if not (self._root / "usr/bin").is_dir():
            raise HostSetupError("this host has no /usr/bin; build the template base instead")
        report(0.0, "copying the skeleton")
        root = workspace / "rootfs"
        root.mkdir(mode=0o755)
        self._lay_folders(root)
        for path in self._public_etc():
            _copy(path, root / path.relative_to(self._root))
        install_overlay(root)
        self._write_files(root)
        self._fill_home(root)
        report(1.0, "done")
        return Built(root, binds=self._binds())

    def _lay_folders(self, root: Path) -> None:
        for relative, mode in _FOLDERS.items():
            (root / relative).mkdir(parents=True, exist_ok=True)
            (root / relative).chmod(mode)
        for name in _TOP_LEVEL:
            source = self._root / name
            if source.is_symlink():
                (root / name).symlink_to(os.readlink(source).removeprefix("/"))
            elif source.is_dir():
                (root / name).mkdir()

    def _write_files(self, root: Path) -> None:
        for relative, content in _FILES.items():
            target = root / relative
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            target.write_text(content)
            target.chmod(0o440 if target.name == "sudoers" else 0o644)
        (root / "etc/localtime").symlink_to("/usr/share/zoneinfo/Etc/UTC")

    def _fill_home(self, root: Path) -> None:
        homes = {root / "home" / users.USER: users.UID, root / "root": 0}
        for home, uid in homes.items():
            for source in sorted((root / "etc/skel").iterdir()):
                shutil.copyfile(source, home / source.name)
            if os.geteuid() == 0:
                for path in (home, *home.iterdir()):
                    os.lchown(path, uid, uid)

    def _public_etc(self) -> list[Path]:
        etc = self._root / "etc"
        return sorted(
            path for pattern in _ETC for path in etc.glob(pattern) if not path.is_socket()
        )

    def _binds(self) -> tuple[Bind, ...]:
        return (
            Bind(self._root / "usr", "/usr"),
            *(
                Bind(self._root / name, f"/{name}")
                for name in _TOP_LEVEL
                if (self._root / name).is_dir() and not (self._root / name).is_symlink()
            ),
            *(
                Bind(_EMPTY, "/" + str(path.relative_to(self._root)))
                for path in _private_folders(self._root / "usr/local")
            ),
        )


def _private_folders(local: Path) -> Iterator[Path]:
    """Folders of ``/usr/local``, two levels deep, that other users cannot read, and its ``etc``."""
    for path in sorted([*local.glob("*"), *local.glob("*/*")]):
        if path.is_symlink() or not path.is_dir():
            continue
        if path == local / "etc":
            if any(path.iterdir()):
                yield path
        elif path.stat().st_mode & 0o005 != 0o005:
            yield path


def _copy(source: Path, target: Path) -> None:
    """Copy what the world may read; symbolic links stay links, special files are left out."""
    mode = source.lstat().st_mode
    if stat.S_ISLNK(mode):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.readlink(source))
    elif stat.S_ISDIR(mode) and mode & 0o005 == 0o005:
        target.mkdir(parents=True, exist_ok=True)
        for child in sorted(source.iterdir()):
            _copy(child, target / child.name)
    elif stat.S_ISREG(mode) and mode & 0o004:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
        target.chmod(0o755 if mode & 0o001 else 0o644)


def _state(path: Path) -> str:
    entry = path.lstat()
    link = os.readlink(path) if stat.S_ISLNK(entry.st_mode) else ""
    return f"{path} {entry.st_mode} {entry.st_size} {entry.st_mtime_ns} {link}"
