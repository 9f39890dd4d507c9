"""Fetching a binary whose digest is known."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

from aenv.models.errors import HostSetupError

_TIMEOUT = 1800.0


async def download(
    url: str, sha256: str, target: Path, progress: Callable[[float, str], None]
) -> Path:
    """Fetch ``url`` (http, https or file) into ``target``; HostSetupError if its digest differs."""
    try:
        async with asyncio.timeout(_TIMEOUT):
            if urlsplit(url).scheme == "file":
                await asyncio.to_thread(shutil.copyfile, unquote(urlsplit(url).path), target)
            else:
                await _fetch(url, target, progress)
    except (OSError, httpx.HTTPError, httpx.InvalidURL) as error:
        raise HostSetupError(f"cannot fetch runsc from AENV_RUNSC_URL: {error}") from error
    found = await asyncio.to_thread(_digest, target)
    if found != sha256.strip().lower():
        raise HostSetupError(
            f"the file at AENV_RUNSC_URL has sha256 {found}, not {sha256}; refused"
        )
    return target


async def _fetch(url: str, target: Path, progress: Callable[[float, str], None]) -> None:
    async with (
        httpx.AsyncClient(follow_redirects=True, timeout=60) as client,
        client.stream("GET", url) as response,
    ):
        response.raise_for_status()
        total, done = int(response.headers.get("content-length", 0)), 0
        with await asyncio.to_thread(target.open, "wb") as file:
            async for chunk in response.aiter_bytes(1 << 20):
                await asyncio.to_thread(file.write, chunk)
                done += len(chunk)
                progress(done / total if total else 0.5, "downloading runsc")


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
