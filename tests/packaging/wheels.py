"""Building our distributions and using them as a user would, from wheels."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
RUNSC_PACKAGE = REPOSITORY / "packages/aenv-runsc"
_COMPILER = re.compile(
    r"(go|gofmt|cc|c\+\+|c[89]9|tcc|as|ld|cargo|rustc)(-.*)?$|.*(gcc|g\+\+|clang|cpp)(-\d+)?$"
)
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")


def build(source: Path, out: Path, *kinds: str) -> Path:
    """``python -m build`` with the tools of this environment; the new file."""
    before = set(out.iterdir())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), *kinds]
    run([*command, str(source)], timeout=1800)
    [made] = set(out.iterdir()) - before
    return made


def run(
    command: list[str],
    *,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float,
) -> str:
    """Its standard output; a failure carries both outputs."""
    done = subprocess.run(
        command, env=env, cwd=cwd, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def members(wheel: Path) -> dict[str, int]:
    """Names in a wheel and their modes."""
    with zipfile.ZipFile(wheel) as archive:
        return {item.filename: item.external_attr >> 16 for item in archive.infolist()}


def lay_out_path(folder: Path) -> str:
    """A PATH with this system's programs and no compiler among them."""
    folder.mkdir()
    for source in (Path(name) for name in _FOLDERS):
        for program in source.iterdir() if source.is_dir() else ():
            link = folder / program.name
            if not _COMPILER.match(program.name) and not link.is_symlink():
                link.symlink_to(program)
    return str(folder)


def constraints(folder: Path) -> Path:
    """The versions of requirements/dev.lock, to install what was tested."""
    lock = (REPOSITORY / "requirements/dev.lock").read_text()
    path = folder / "constraints.txt"
    path.write_text("\n".join(re.findall(r"^[A-Za-z0-9._-]+==\S+", lock, re.MULTILINE)))
    return path


def make_environment(root: Path, *wheels: str) -> Path:
    """A virtual environment with these wheels and what they require, and nothing else."""
    venv = root / "venv"
    run([sys.executable, "-m", "venv", str(venv)], timeout=120)
    pip = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet"]
    run([*pip, "--constraint", str(constraints(root)), *wheels], cwd=root, timeout=600)
    return venv


@dataclass(frozen=True)
class Installation:
    """A virtual environment on a machine that knows nothing of us: everything is in ``root``."""

    root: Path
    venv: Path

    def __post_init__(self) -> None:
        (self.root / "home").mkdir()
        lay_out_path(self.root / "programs")

    def env(self) -> dict[str, str]:
        folders = {
            f"AENV_{name}_DIR": str(self.root / name.lower())
            for name in ("DATA", "CACHE", "CONFIG", "RUN")
        }
        return {
            "HOME": str(self.root / "home"),
            "PATH": f"{self.venv / 'bin'}:{self.root / 'programs'}",
            "AENV_POOL_MB": "1024",
            "AENV_PORT": "0",
            **{key: os.environ[key] for key in ("TMPDIR", "LANG") if key in os.environ},
            **folders,
        }

    def aenv(self, *arguments: str, timeout: float = 120) -> str:
        command = [str(self.venv / "bin" / "aenv"), *arguments]
        return run(command, env=self.env(), cwd=self.root, timeout=timeout)

    def python(self, program: str, timeout: float = 180) -> str:
        command = [str(self.venv / "bin" / "python"), "-c", program]
        return run(command, env=self.env(), cwd=self.root, timeout=timeout)
