"""Folders that hold one entry per machine."""

from __future__ import annotations

from pathlib import Path


def subfolders(folder: Path) -> set[str]:
    """The names in ``folder``; none if it is not there."""
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()
