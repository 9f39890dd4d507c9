"""``top``."""

from __future__ import annotations

import asyncio
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from aenv.cli.apps import SANDBOXES, command, common, is_tty
from aenv.cli.outputs import emit, emit_json, rich_table, size, table
from aenv.cli.sessions import client, run

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from aenv.models.memory import MemoryReport
    from aenv.models.sandboxes import SandboxMetrics
    from aenv.sdk import SandboxInfo
    from aenv.sdk.client import Client

COLUMNS = ("id", "template", "cpu", "cpu used", "memory", "memory used", "disk used")
HOST_COLUMNS = ("host", "sandboxes", "promised", "used")
_WORTH_SAYING = 0.01
Sample = tuple["SandboxInfo", "SandboxMetrics | None"]


@dataclass(frozen=True)
class View:
    """Running sandboxes, busiest first, and the memory of the hosts by their ids."""

    samples: list[Sample]
    hosts: dict[str, MemoryReport]


@command("top", SANDBOXES)
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one sample and end.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between samples.")] = 2.0,
) -> None:
    """Show what running sandboxes use, and what of the memory is promised, live."""
    if once or common.json or not is_tty(1):
        view = run(_once())
        if common.json:
            emit_json(_facts(view))
        else:
            _print(view)
        return
    run(_live(interval))


async def _once() -> View:
    async with client() as server:
        return await _look(server)


async def _live(interval: float) -> None:
    from rich.live import Live

    async with client() as server:
        with Live(await _screen(server), screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(interval)
                live.update(await _screen(server), refresh=True)


async def _screen(server: Client) -> Group:
    from rich.console import Group

    view = await _look(server)
    shown = rich_table(COLUMNS, [_row(sample) for sample in view.samples])
    shown.caption = "Ctrl-C ends this"
    shown.caption_justify = "left"
    parts: list[RenderableType] = []
    for report in view.hosts.values():
        parts += [rich_table(HOST_COLUMNS, _host_rows(report)), *_remarks(report), ""]
    return Group(*parts, shown)


async def _look(server: Client) -> View:
    from aenv.models.sandboxes import SandboxState
    from aenv.sdk import hosts, servers

    found = await servers.list_sandboxes(server)
    running = [info for info in found if info.state is SandboxState.RUNNING]
    metrics = await servers.newest_metrics(server, [info.id for info in running])
    samples: list[Sample] = [(info, metrics.get(info.id)) for info in running]
    samples.sort(key=lambda s: s[1].cpu_used_pct if s[1] else 0, reverse=True)
    return View(samples, await hosts.memory(server))


def _print(view: View) -> None:
    table(COLUMNS, [_row(sample) for sample in view.samples])
    for report in view.hosts.values():
        emit("")
        table(HOST_COLUMNS, _host_rows(report))
        for remark in _remarks(report):
            emit(remark)


def _facts(view: View) -> dict[str, object]:
    return {
        "sandboxes": [{"sandbox": info, "metrics": metrics} for info, metrics in view.samples],
        "hosts": [
            {"id": name, "promised_to_used": round(report.ratio, 2), **asdict(report)}
            for name, report in view.hosts.items()
        ],
    }


def _host_rows(report: MemoryReport) -> list[tuple[str, ...]]:
    names = {"running": "running", "hot": "paused, in memory", "pooled": "waiting in pools"}
    rows = [
        (names[kind], str(share.sandboxes), size(share.promised), size(share.used))
        for kind, share in report.kinds.items()
    ]
    used = report.total - report.available
    return [*rows, ("the host", "", size(report.total), size(used))]


def _remarks(report: MemoryReport) -> list[str]:
    """Promised ÷ used, and what is out of the ordinary."""
    found = [f"promised ÷ used: {report.ratio:.1f}; {size(report.available)} are available"]
    if report.stalled is not None and report.stalled >= _WORTH_SAYING:
        found.append(f"the host's tasks wait for memory {100 * report.stalled:.0f} % of the time")
    if report.exhausted:
        found.append("the host is short of memory, and nothing is left to give back")
    if report.relieved:
        found.append(f"memory was given back {sum(report.relieved.values())} times")
    if report.refusals:
        reasons = ", ".join(f"{name} {number}" for name, number in report.refusals.items())
        found.append(f"creates refused: {reasons}")
    return found


def _row(sample: Sample) -> tuple[str, ...]:
    info, metrics = sample
    name = (info.alias or info.template) + ("" if info.isolated else " (no isolation)")
    cpu, memory = f"{info.cpu:g}", size(info.memory_mb * 2**20)
    if metrics is None:
        return (info.id, name, cpu, "-", memory, "-", "-")
    used = (
        f"{metrics.cpu_used_pct:.1f} %",
        memory,
        size(metrics.mem_used),
        size(metrics.disk_used),
    )
    return (info.id, name, cpu, *used)
