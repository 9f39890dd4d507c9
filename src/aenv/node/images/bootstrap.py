"""Run mmdebstrap: packages of one suite into a folder, resumable, with progress.

Downloaded packages go to a cache folder that is bound over the new system's, so a killed run loses
nothing of them.
"""

from __future__ import annotations

import os
import pty
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
    ("downloading packages", "downloading the essential packages", 0.06, 0.14),
    ("extracting archives", "unpacking the essential packages", 0.14, 0.24),
    ("installing essential", "installing the essential packages", 0.24, 0.38),
    ("installing remaining", "downloading and installing packages", 0.38, 0.98),
    ("cleaning package lists", "cleaning up", 0.98, 1.00),
)
"""mmdebstrap's own words, ours, and the share of its time (fractions from, to)."""

_PERCENT = re.compile(r"(?P<status>\w+)?:?\s+(?P<percent>\d+\.\d\d)(?:\s|$)")
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
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
    acquire: Sequence[str],
    epoch: int,
    report: Report,
) -> None:
    """Fill ``root`` (absent). ``acquire``: further lines of apt configuration, for this run only.

    Raises HostSetupError, DiskFullError, TemplateBuildError with the last lines of output.
    """
    archives.mkdir(parents=True, exist_ok=True)
    command = _command(root, suite, packages, archives, acquire)
    stdin = "\n".join(source.deb822() for source in sources)
    env = {
        **os.environ,
        "SOURCE_DATE_EPOCH": str(epoch),
        "LC_ALL": "C.UTF-8",
        "DEBIAN_FRONTEND": "noninteractive",
    }
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    progress = _Progress(report)
    try:
        for line in _run(command, stdin, env):
            progress.see(line)
            if line and not _PERCENT.match(line) and line != "done":
                tail.append(line)
    except FileNotFoundError as error:
        raise HostSetupError(
            f"{error.filename} is missing; run: apt-get install mmdebstrap"
        ) from error
    except subprocess.CalledProcessError as error:
        raise _failure(tail) from error


def _command(
    root: Path, suite: str, packages: Sequence[str], archives: Path, acquire: Sequence[str]
) -> list[str]:
    cache = '"$1"/var/cache/apt/archives'
    return [
        "mmdebstrap",
        "--mode=root",
        "--variant=apt",
        "--format=directory",
        f"--include={','.join(packages)}",
        "--skip=download/empty,essential/unlink,cleanup/apt/cache",
        *(f"--aptopt={option}" for option in (*_APT_OPTIONS, *acquire)),
        *(f"--dpkgopt={option}" for option in LEAVE_OUT),
        f"--setup-hook=mkdir -p {cache} && mount --bind {shlex.quote(str(archives))} {cache}",
        f"--customize-hook=umount {cache}",
        suite,
        str(root),
        "-",
    ]


def _run(command: Sequence[str], stdin: str, env: dict[str, str]) -> Iterator[str]:
    """Its lines as they come; without a terminal mmdebstrap would not tell how far it is."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=theirs, env=env
        )
    finally:
        os.close(theirs)
    with process, os.fdopen(ours, "rb", buffering=0) as output:
        assert process.stdin is not None
        process.stdin.write(stdin.encode())
        process.stdin.close()
        yield from _lines(output.fileno())
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command[0])


def _lines(descriptor: int) -> Iterator[str]:
    rest = ""
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:
            chunk = b""
        if not chunk:
            break
        *lines, rest = re.split(r"[\r\n]+", rest + chunk.decode(errors="replace"))
        yield from (_ESCAPES.sub("", line).strip() for line in lines)
    yield _ESCAPES.sub("", rest).strip()


class _Progress:
    """Turns mmdebstrap's lines into a fraction that never falls."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._phase = _PHASES[0]
        self._halves = False

    def see(self, line: str) -> None:
        for phase in _PHASES:
            if line.startswith(f"I: {phase[0]}"):
                self._phase = phase
                self._report(phase[2], phase[1])
                return
        match = _PERCENT.match(line)
        if match:
            self._report_part(match["status"], float(match["percent"]) / 100)

    def _report_part(self, status: str | None, part: float) -> None:
        words, step, start, end = self._phase
        if words == "installing remaining":
            part = part * 0.25 if status == "downloading" else 0.25 + part * 0.75
        self._report(start + (end - start) * part, step)


def _failure(tail: Sequence[str]) -> TemplateBuildError | DiskFullError:
    text = "\n".join(tail)
    if "No space left on device" in text or "not enough free disk space" in text:
        return DiskFullError(
            f"the disk is full; free some space and build again (it resumes)\n{text}"
        )
    errors = [line for line in tail if line.startswith(("E:", "Err:", "W:", "dpkg: error"))]
    return TemplateBuildError("mmdebstrap failed: " + "\n".join(errors or tail))
