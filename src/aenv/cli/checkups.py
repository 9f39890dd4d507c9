"""What ``doctor`` looks at: the node's own findings, and what lies around the node."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from aenv.cli import kvm
from aenv.cli.outputs import counted
from aenv.models.errors import InvalidRequestError
from aenv.node.engine import Capabilities, Finding, Severity

if TYPE_CHECKING:
    from aenv.models.settings import Settings

_NO_ROOT = "not root: the gvisor engine cannot run; `process` (no isolation) can, by its name only"


async def examine() -> list[Finding]:
    """In the order a person would mend them."""
    from aenv.sdk.local_servers import require_server_extra

    require_server_extra()
    found = [_python(), *_installation(), _rights()]
    try:
        settings = _settings()
    except InvalidRequestError as error:
        remedy = "set it anew (aenv config set KEY VALUE), or edit the file: aenv config path"
        return [*found, Finding("settings", Severity.MISSING, str(error), remedy)]
    found += await _node(settings)
    found += [_cgroups(), kvm.examine(), *_disk(settings), *_tools()]
    found += [*await _templates(settings), _server(settings)]
    return found if os.geteuid() == 0 else [_by_root(finding) for finding in found]


def missing(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.severity is Severity.MISSING]


def is_command(fix: str) -> bool:
    """Whether it can be run as it stands; some advice is for the person only."""
    parts = [part.split() for part in re.split(r"&&|;", fix) if part.strip()]
    path = search_path()
    return bool(parts) and all(shutil.which(words[0], path=path) is not None for words in parts)


def search_path() -> str:
    """Where a remedy's commands are looked for: beside this very aenv first, and where root's
    are.
    """
    beside = Path(sys.executable).parent
    return f"{beside}:{os.environ.get('PATH', os.defpath)}:/usr/local/sbin:/usr/sbin:/sbin"


async def close_firewalls() -> list[str]:
    """Take our rules back out of foreign firewalls; the rules removed."""
    from aenv.node.host import open_host
    from aenv.node.network.slots import SlotPool

    settings = _settings()
    host = open_host(settings)
    try:
        return await SlotPool(settings, host).unfix()
    finally:
        host.close()


def _settings() -> Settings:
    from aenv.models.folders import Folders
    from aenv.store.settings import load_settings

    return load_settings(Folders.resolve(), env=os.environ)


def _by_root(finding: Finding) -> Finding:
    """Its remedy as one who is not root runs it; sudo does not look for ``aenv`` where we do."""
    fix = finding.fix
    if not fix or not is_command(fix) or fix.startswith(("sudo ", sys.executable)):
        return finding

    def lifted(first: re.Match[str]) -> str:
        return f"{first[1]}sudo {shutil.which(first[2], path=search_path())}"

    return replace(finding, fix=re.sub(r"(^|&&\s*|;\s*)(\S+)", lifted, fix))


def _python() -> Finding:
    system = f"{platform.system()} {platform.release()} {platform.machine()}"
    return Finding("python", Severity.OK, f"{platform.python_version()} on {system}")


def _installation() -> list[Finding]:
    from importlib import metadata

    try:
        other = metadata.distribution("aenvironment")
    except metadata.PackageNotFoundError:
        return []
    return [
        Finding(
            "python",
            Severity.MISSING,
            f"the distribution aenvironment {other.version} also owns the package `aenv`: one "
            "overwrites the other's files",
            f"{sys.executable} -m pip uninstall aenvironment; "
            f"{sys.executable} -m pip install --force-reinstall --no-deps aenv-platform",
        )
    ]


def _rights() -> Finding:
    if sys.platform == "linux" and os.geteuid() == 0:
        return Finding("rights", Severity.OK, "root")
    return Finding(
        "rights",
        Severity.WARNING,
        _NO_ROOT,
        f"sudo {shutil.which('aenv', path=search_path()) or 'aenv'} up",
    )


async def _node(settings: Settings) -> list[Finding]:
    from aenv.models.errors import AenvError
    from aenv.node.local import LocalNode

    try:
        node = LocalNode(settings)
        info, found = await node.info(), await node.probe()
        unusable = {f.topic for f in found if f.severity is Severity.MISSING}
        engines = [c for c in info.capabilities if c.engine not in unusable]
        return [*map(_engine, engines), *found]
    except AenvError as error:
        return [Finding("node", Severity.MISSING, str(error))]


def _engine(capabilities: Capabilities) -> Finding:
    isolation = f"isolation: {capabilities.isolation}"
    lacks = [
        name.replace("_", " ")
        for name in ("limits", "network_isolation", "egress_policy", "memory_snapshot")
        if not getattr(capabilities, name)
    ]
    without = f"; without {', '.join(lacks)}" if lacks else ""
    severity = Severity.WARNING if capabilities.isolation == "none" else Severity.OK
    trusted = (
        " (sandboxes run as this user, with its files and network), for trusted code only, never "
        "chosen by itself"
        if severity is Severity.WARNING
        else ""
    )
    return Finding("engine", severity, f"{capabilities.engine}: {isolation}{trusted}{without}")


def _cgroups() -> Finding:
    root = Path("/sys/fs/cgroup")
    if (root / "cgroup.controllers").exists():
        controllers = (root / "cgroup.controllers").read_text().split()
        return Finding("cgroups", Severity.OK, f"v2 ({' '.join(controllers) or 'no controllers'})")
    found = sorted(p.name for p in root.iterdir() if p.is_dir()) if root.is_dir() else []
    if {"cpu", "memory", "pids"} <= set(found):
        hybrid = ", hybrid" if "unified" in found else ""
        return Finding("cgroups", Severity.OK, f"v1{hybrid} with cpu, memory, pids")
    lost = ", ".join(sorted({"cpu", "memory", "pids"} - set(found)))
    return Finding("cgroups", Severity.WARNING, f"no limits on {lost}: no such cgroup controller")


def _disk(settings: Settings) -> list[Finding]:
    findings = []
    for name in ("data", "cache"):
        folder = getattr(settings.folders, name)
        usage = shutil.disk_usage(_existing(folder))
        free = usage.free >> 20
        need = settings.disk_reserve_mb + 2048
        findings.append(
            Finding(
                "disk",
                Severity.OK if free >= need else Severity.WARNING,
                f"{name}: {free / 1024:.1f} of {usage.total / 2**30:.1f} GiB free in {folder}"
                + ("" if free >= need else f"; AENV_{name.upper()}_DIR names a larger disk"),
            )
        )
    return findings


def _tools() -> list[Finding]:
    """What only builds need; what the engine needs it names itself."""
    packages = {"mmdebstrap": "mmdebstrap", "mkfs.erofs": "erofs-utils"}
    absent = [package for tool, package in packages.items() if shutil.which(tool) is None]
    if not absent:
        return [Finding("builds", Severity.OK, "mmdebstrap and erofs-utils are installed")]
    words = " ".join(absent)
    summary = f"templates cannot be built here: {words} missing"
    return [Finding("builds", Severity.WARNING, summary, f"apt-get install -y {words}")]


async def _templates(settings: Settings) -> list[Finding]:
    from aenv.models.errors import AenvError
    from aenv.node.images import ImageStore

    store = ImageStore(settings, None)
    try:
        progress = await store.progress("base")
    except AenvError as error:
        return [Finding("templates", Severity.WARNING, str(error))]
    if progress.status == "ready":
        return [Finding("templates", Severity.OK, "base is built")]
    fix = "aenv template build base"
    if progress.status == "building":
        return [Finding("templates", Severity.OK, f"base is being built ({progress.fraction:.0%})")]
    why = f" ({progress.error})" if progress.error else ""
    return [Finding("templates", Severity.WARNING, f"base is not built{why}", fix)]


def _server(settings: Settings) -> Finding:
    from aenv.node import leftovers
    from aenv.sdk import holders, local_servers

    url = holders.running(settings.folders.data)
    if url and local_servers.answers(url):
        return Finding("server", Severity.OK, f"runs at {url}")
    if left := len(leftovers.machines(settings.folders)):
        said = f"does not run, but it left {counted(left)} running; or: aenv down --kill"
        return Finding("server", Severity.WARNING, said, "aenv up")
    return Finding("server", Severity.OK, "does not run; programs start it on demand, or: aenv up")


def _existing(folder: Path) -> Path:
    while not folder.exists():
        folder = folder.parent
    return folder
