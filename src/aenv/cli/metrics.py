"""``top``."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated

import typer

from aenv.cli.apps import SANDBOXES, command, common, is_tty
from aenv.cli.outputs import emit_json, rich_table, size, table
from aenv.cli.sessions import client, run

if TYPE_CHECKING:
    from rich.table import Table

    from aenv.models.sandboxes import SandboxMetrics
    from aenv.sdk import SandboxInfo
    from aenv.sdk.client import Client

COLUMNS = ("id", "template", "cpu", "cpu used", "memory", "memory used", "disk used")
Sample = tuple["SandboxInfo", "SandboxMetrics | None"]


@command("top", SANDBOXES)
def top(
    once: Annotated[bool, typer.Option("--once", help="Print one sample and end.")] = False,
    interval: Annotated[float, typer.Option(min=0.2, help="Seconds between samples.")] = 2.0,
) -> None:
    """Show what running sandboxes use, live."""
    if once or common.json or not is_tty(1):
        samples = run(_once())
        if common.json:
            emit_json([{"sandbox": info, "metrics": metrics} for info, metrics in samples])
        else:
            table(COLUMNS, [_row(sample) for sample in samples])
        return
    run(_live(interval))


async def _once() -> list[Sample]:
    async with client() as server:
        return await _sample(server)


async def _live(interval: float) -> None:
    from rich.live import Live

    async with client() as server:
        with Live(await _table(server), screen=True, auto_refresh=False) as live:
            while True:
                await asyncio.sleep(interval)
                live.update(await _table(server), refresh=True)


async def _table(server: Client) -> Table:
    shown = rich_table(COLUMNS, [_row(sample) for sample in await _sample(server)])
    shown.caption = "Ctrl-C ends this"
    shown.caption_justify = "left"
    return shown


async def _sample(server: Client) -> list[Sample]:
    """Busiest first."""
    from aenv.models.sandboxes import SandboxState
    from aenv.sdk import servers

    found = await servers.list_sandboxes(server)
    running = [info for info in found if info.state is SandboxState.RUNNING]
    metrics = await servers.newest_metrics(server, [info.id for info in running])
    samples: list[Sample] = [(info, metrics.get(info.id)) for info in running]
    return sorted(samples, key=lambda s: s[1].cpu_used_pct if s[1] else 0, reverse=True)


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
