"""``tree``: which sandbox or snapshot came from which."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from aenv.cli.apps import SANDBOXES, command, common
from aenv.cli.outputs import age, emit, emit_json, size
from aenv.cli.sessions import run

if TYPE_CHECKING:
    from aenv.sdk import SandboxInfo, SnapshotInfo


@dataclass
class Branch:
    """A sandbox or snapshot, and what came of it, oldest first."""

    kind: str
    id: str
    about: str
    children: list[Branch] = field(default_factory=list)


@command("tree", SANDBOXES)
def tree() -> None:
    """Show the lineage of sandboxes and snapshots."""

    async def work() -> tuple[list[SandboxInfo], list[SnapshotInfo]]:
        from aenv.sdk import AsyncSandbox, AsyncSnapshot

        return (
            await AsyncSandbox.list(**common.server),
            await AsyncSnapshot.list(**common.server),
        )

    roots = lineage(*run(work()))
    if common.json:
        emit_json(roots)
        return
    for root in roots:
        for line in lines(root):
            emit(line)


def lineage(sandboxes: Sequence[SandboxInfo], snapshots: Sequence[SnapshotInfo]) -> list[Branch]:
    """The roots. What came from something that is gone hangs on the nearest ancestor that is not,
    or is a root.
    """
    images = {one.image: one for one in snapshots}
    parents: dict[str, str | None] = {}
    moments = [(one.started_at, one.id, _of_sandbox(one)) for one in sandboxes]
    moments += [(one.created_at, one.image, _of_snapshot(one)) for one in snapshots]
    moments.sort(key=lambda moment: moment[:2])
    branches = {key: branch for _, key, branch in moments}
    for info in sandboxes:
        parents[info.id] = _first(branches, _ancestors(info, images))
    for kept in snapshots:
        parents[kept.image] = _first(branches, [kept.sandbox, kept.parent])
    roots: list[Branch] = []
    for key, branch in branches.items():
        parent = parents[key]
        siblings = roots if parent is None else branches[parent].children
        siblings.append(branch)
    return roots


def lines(branch: Branch, first: str = "", rest: str = "") -> Iterator[str]:
    yield f"{first}{branch.kind} {branch.id}  {branch.about}"
    for number, child in enumerate(branch.children, 1):
        corner, bar = ("└─ ", "   ") if number == len(branch.children) else ("├─ ", "│  ")
        yield from lines(child, rest + corner, rest + bar)


def _ancestors(info: SandboxInfo, images: dict[str, SnapshotInfo]) -> list[str | None]:
    """The nearest first: the snapshot it was started from, or the sandbox it was forked from."""
    kept = images.get(info.parent_snapshot or "")
    if kept is not None and kept.sandbox == info.parent_sandbox:
        return [info.parent_snapshot]
    return [info.parent_sandbox, info.parent_snapshot]


def _first(known: dict[str, Branch], keys: Sequence[str | None]) -> str | None:
    return next((key for key in keys if key in known), None)


def _of_sandbox(info: SandboxInfo) -> Branch:
    about = f"{info.alias or info.template}  {info.state}  {age(info.started_at)}"
    return Branch("sandbox", info.id, about)


def _of_snapshot(kept: SnapshotInfo) -> Branch:
    about = f"{size(kept.own_bytes)} own, {size(kept.shared_bytes)} shared  {age(kept.created_at)}"
    return Branch("snapshot", kept.id, about)
