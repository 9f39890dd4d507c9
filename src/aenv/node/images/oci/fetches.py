"""Bring an image's layers onto the shelf: what is there stays, the rest is fetched and converted,
a few at a time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from aenv.models.templates import PartProgress
from aenv.node.images.layers import LayerShelf
from aenv.node.images.oci.conversions import VERSION, convert
from aenv.node.images.oci.manifests import Descriptor
from aenv.node.images.oci.sources import Source
from aenv.node.images.recipes import Reporter, fingerprint

MOST_LAYERS = 30
"""Of one image: the kernel takes a page of mount options. Longer chains are merged below."""
_AT_ONCE = 3
_STALE = 24 * 3600
_FETCH_SHARE = 0.7


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that become one image file, lowest first; ``diff_ids`` in hex."""

    key: str
    layers: tuple[Descriptor, ...]
    diff_ids: tuple[str, ...]


def group(layers: Sequence[Descriptor], diff_ids: Sequence[str]) -> list[Group]:
    """Lowest first. A layer that occurs again counts where it is uppermost."""
    last = {diff_id: place for place, diff_id in enumerate(diff_ids)}
    pairs = [
        (layer, diff_id.removeprefix("sha256:"))
        for place, (layer, diff_id) in enumerate(zip(layers, diff_ids, strict=True))
        if last[diff_id] == place
    ]
    merged = max(1, len(pairs) - MOST_LAYERS + 1)
    parts = [pairs[:merged], *([pair] for pair in pairs[merged:])]
    return [_group(part) for part in parts if part]


class Fetches:
    """``blobs`` keeps what has been received, for an attempt that goes on; ``holder`` claims the
    layers as long as it exists.
    """

    def __init__(
        self, source: Source, shelf: LayerShelf, blobs: Path, holder: Path, report: Reporter
    ) -> None:
        self._source = source
        self._shelf = shelf
        self._blobs = blobs
        self._holder = holder
        self._report = report
        self._slots = asyncio.Semaphore(_AT_ONCE)
        self._parts: dict[str, PartProgress] = {}

    async def bring(self, groups: Sequence[Group]) -> None:
        """Raises what the source and the conversion raise; the first failure ends the others."""
        await asyncio.to_thread(self._prepare)
        self._parts = {
            layer.digest: PartProgress(_short(layer), "waiting", 0, layer.size)
            for one in groups
            for layer in one.layers
        }
        tasks = [asyncio.create_task(self._bring(one)) for one in groups]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _bring(self, wanted: Group) -> None:
        async with self._slots:
            if not await asyncio.to_thread(self._shelf.claim, wanted.key, self._holder):
                loop = asyncio.get_running_loop()
                await asyncio.to_thread(
                    self._shelf.make,
                    wanted.key,
                    self._holder,
                    lambda target: self._make(wanted, target, loop),
                )
            for layer in wanted.layers:
                self._note(layer, "done", layer.size)

    def _make(self, wanted: Group, target: Path, loop: asyncio.AbstractEventLoop) -> str:
        """In a thread that holds the layer's lock, so that nobody else fetches it."""
        archives = []
        for layer, diff_id in zip(wanted.layers, wanted.diff_ids, strict=True):
            fetched = asyncio.run_coroutine_threadsafe(self._fetch(layer), loop)
            archives.append((fetched.result(), diff_id))
        for layer in wanted.layers:
            loop.call_soon_threadsafe(self._note, layer, "unpacking", layer.size)
        digest = convert(archives, target)
        for path, _ in archives:
            if path.parent == self._blobs:
                path.unlink(missing_ok=True)
        return digest

    async def _fetch(self, layer: Descriptor) -> Path:
        scratch = self._blobs / layer.digest.removeprefix("sha256:")
        return await self._source.blob(
            layer, scratch, lambda done: self._note(layer, "fetching", done)
        )

    def _note(self, layer: Descriptor, state: str, done: int) -> None:
        self._parts[layer.digest] = PartProgress(_short(layer), state, done, layer.size)
        parts = tuple(self._parts.values())
        total = sum(max(part.total, 1) for part in parts)
        fetched = sum(part.done if part.total else 1 for part in parts)
        over = sum(max(part.total, 1) for part in parts if part.state == "done")
        fraction = _FETCH_SHARE * fetched / total + (1 - _FETCH_SHARE) * over / total
        ready = sum(part.state == "done" for part in parts)
        step = f"{ready} of {len(parts)} layers, {fetched >> 20} of {total >> 20} MiB"
        self._report(min(fraction, 1.0) * 0.98, step, parts)

    def _prepare(self) -> None:
        """Forget parts of blobs that nobody has gone on with."""
        self._blobs.mkdir(parents=True, exist_ok=True)
        for path in self._blobs.iterdir():
            if path.stat().st_mtime < time.time() - _STALE:
                path.unlink(missing_ok=True)


def _group(pairs: Sequence[tuple[Descriptor, str]]) -> Group:
    layers, diff_ids = zip(*pairs, strict=True)
    return Group(fingerprint("layer", VERSION, *diff_ids)[:32], layers, diff_ids)


def _short(layer: Descriptor) -> str:
    return layer.digest.removeprefix("sha256:")[:12]
