"""Pack a folder into an EROFS image whose bytes depend on nothing but the folder's content."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from aenv.models.errors import DiskFullError, HostSetupError, TemplateBuildError

_UUID = "00000000-0000-4000-8000-000000000000"
_TIMEOUT = 1800


def clamp_times(root: Path, epoch: int) -> None:
    """Pull modification times after ``epoch`` back to it; ``.pyc`` files name the older ones."""
    for folder, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = os.path.join(folder, name)
            if os.lstat(path).st_mtime > epoch:
                os.utime(path, (epoch, epoch), follow_symlinks=False)
    os.utime(root, (epoch, epoch))


def pack(root: Path, image: Path, epoch: int) -> None:
    """Raises HostSetupError, DiskFullError, TemplateBuildError."""
    clamp_times(root, epoch)
    command = ["mkfs.erofs", "-zlz4", "-C65536", f"-U{_UUID}", "--quiet", str(image), str(root)]
    env = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
    try:
        subprocess.run(
            command, check=True, env=env, timeout=_TIMEOUT, capture_output=True, text=True
        )
    except FileNotFoundError as error:
        raise HostSetupError("mkfs.erofs is missing; run: apt-get install erofs-utils") from error
    except subprocess.TimeoutExpired as error:
        raise TemplateBuildError(f"mkfs.erofs did not finish in {_TIMEOUT} s") from error
    except subprocess.CalledProcessError as error:
        words = (error.stderr or error.stdout).strip()
        if "No space left" in words:
            raise DiskFullError("the disk is full; free some space and build again") from error
        raise TemplateBuildError(f"mkfs.erofs failed: {words[-1000:]}") from error
