"""Run mmdebstrap: packages of one suite into a folder, resumable, with progress.

Downloaded packages go to a cache folder that is bound over the new system's, so a killed run loses
nothing of them.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

from aenv.models.errors import DiskFullError, HostSetupError, TemplateBuildError
from aenv.node.images.apt_sources import AptSource
from aenv.node.images.recipes import Report

_PHASES = (
    ("running apt-get update", "reading the package lists", 0.00, 0.06),
    ("downloading packages", "downloading the essential packages", 0.06, 0.12),
    ("extracting archives", "unpacking the essential packages", 0.12, 0.32),
    ("installing essential", "installing the essential packages", 0.32, 0.50),
    ("installing remaining", "installing packages", 0.50, 0.98),
    ("cleaning", "cleaning up", 0.98, 1.00),
)
"""mmdebstrap's own words, ours, and the share of its time (fractions from, to)."""

_PLANNED = re.compile(r"\d+ upgraded, (\d+) newly installed")
_WEIGHTS = {
    "downloading packages": {"Get": 1.0},
    "installing essential": {"Setting": 1.0},
    "installing remaining": {"Get": 0.2, "Unpacking": 0.5, "Setting": 0.3},
}
"""apt's lines, one per package, and what all of one kind are worth in a phase."""

_TAIL_LINES = 40
_APT_OPTIONS = (
    'APT::Install-Recommends "false"',
    'APT::Keep-Downloaded-Packages "true"',
    'Acquire::Languages "none"',
    'Acquire::Retries "3"',
    'Acquire::http::Timeout "60"',
    'Acquire::https::Timeout "60"',
)
LEAVE_OUT = (
    "path-exclude=/usr/share/man/*",
    "path-exclude=/usr/share/info/*",
    "path-exclude=/usr/share/locale/*",
    "path-include=/usr/share/locale/locale.alias",
    "path-exclude=/usr/share/doc/*",
    "path-include=/usr/share/doc/*/copyright",
    "path-include=/usr/share/doc/apt/examples/sources.list",
    "path-exclude=/usr/share/lintian/*",
    "path-exclude=/usr/lib/python3*/EXTERNALLY-MANAGED",
)


def mmdebstrap(
    root: Path,
    *,
    suite: str,
    packages: Sequence[str],
    sources: Sequence[AptSource],
    archives: Path,
    scratch: Path,
    acquire: Sequence[str],
    report: Report,
) -> None:
    """Fill ``root`` (absent). ``acquire``: further lines of apt configuration, for this run only.
    ``scratch``: where a run that is killed leaves its temporary files.

    The package lists stay, for the caller to read. SOURCE_DATE_EPOCH is not passed on: with it
    Python compiles to files that every import checks against the content of their source.

    Raises HostSetupError, DiskFullError, TemplateBuildError with the last lines of output.
    """
    archives.mkdir(parents=True, exist_ok=True)
    scratch.mkdir(exist_ok=True)
    command = _command(root, suite, packages, archives, acquire)
    stdin = "\n".join(source.deb822() for source in sources)
    env = {**os.environ, "LC_ALL": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"}
    env["TMPDIR"] = str(scratch)  # of mmdebstrap itself; apt and its user get one in the new system
    env.pop("SOURCE_DATE_EPOCH", None)
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    progress = Progress(report)
    try:
        for line in _run(command, stdin, env):
            progress.see(line)
            tail.append(line)
    except FileNotFoundError as error:
        raise HostSetupError(
            f"{error.filename} is missing; run: apt-get install mmdebstrap"
        ) from error
    except subprocess.CalledProcessError as error:
        raise failure(tail) from error
    finally:
        _unmount_below(root)


def _command(
    root: Path, suite: str, packages: Sequence[str], archives: Path, acquire: Sequence[str]
) -> list[str]:
    cache = '"$1"/var/cache/apt/archives'
    return [
        "mmdebstrap",
        "--verbose",
        "--mode=root",
        "--variant=apt",
        "--format=directory",
        f"--include={','.join(packages)}",
        "--skip=download/empty,essential/unlink,cleanup/apt/cache,cleanup/apt/lists",
        *(f"--aptopt={option}" for option in (*_APT_OPTIONS, *acquire)),
        *(f"--dpkgopt={option}" for option in LEAVE_OUT),
        f"--setup-hook=mkdir -p {cache} && mount --bind {shlex.quote(str(archives))} {cache}",
        f"--customize-hook=umount {cache}",
        suite,
        str(root),
        "-",
    ]


def _run(command: Sequence[str], stdin: str, env: dict[str, str]) -> Iterator[str]:
    """Its lines as they come. Raises CalledProcessError."""
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=env,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(stdin)
        process.stdin.close()
        for line in process.stderr:
            yield line.strip()
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command[0])


def _unmount_below(root: Path) -> None:
    """A failed run leaves its mounts, and whoever removes ``root`` would empty the cache."""
    table = Path("/proc/self/mounts").read_text().splitlines()
    targets = [line.split()[1].encode().decode("unicode_escape") for line in table]
    for target in reversed(targets):
        if target.startswith(f"{root}/"):
            subprocess.run(["umount", "--lazy", target], check=True, timeout=60)


class Progress:
    """Turns mmdebstrap's lines into a fraction that never falls."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._phase = _PHASES[0]
        self._planned = 0
        self._part = 0.0

    def see(self, line: str) -> None:
        for phase in _PHASES:
            if line.startswith(f"I: {phase[0]}"):
                self._phase, self._part = phase, 0.0
                self._tell()
        if match := _PLANNED.match(line):
            self._planned, self._part = int(match[1]), 0.0
        weight = _WEIGHTS.get(self._phase[0], {}).get(re.split(r"[ :]", line, maxsplit=1)[0])
        if weight and self._planned:
            self._part = min(self._part + weight / self._planned, 1.0)
            self._tell()

    def _tell(self) -> None:
        _, step, start, end = self._phase
        self._report(start + (end - start) * self._part, step)


def failure(tail: Sequence[str]) -> TemplateBuildError | DiskFullError:
    text = "\n".join(tail)
    if "No space left on device" in text or "not enough free disk space" in text:
        return DiskFullError(
            f"the disk is full; free some space and build again (it resumes)\n{text}"
        )
    errors = [line for line in tail if line.startswith(("E:", "Err:", "W:", "dpkg: error"))]
    return TemplateBuildError("mmdebstrap failed: " + "\n".join(errors or tail))
