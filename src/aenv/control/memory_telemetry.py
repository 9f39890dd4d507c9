"""The memory of the host and of its sandboxes in Prometheus' terms."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aenv.models.memory import MemoryReport


class MemoryCollector(Collector):
    """Shows ``report``; nothing while there is none. What the kernel does not tell is left out."""

    def __init__(self) -> None:
        self.report: MemoryReport | None = None

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        report = self.report
        if report is None:
            return
        yield from _by_kind(report)
        yield _gauge(
            "aenv_memory_overcommit_ratio",
            "Memory promised to running sandboxes ÷ used by all.",
            report.ratio,
        )
        yield _gauge(
            "aenv_host_memory_available_bytes",
            "Memory that can be used now, of the host or of the server's control group.",
            report.available,
        )
        if report.stalled is not None:
            yield _gauge(
                "aenv_host_memory_stalled_ratio",
                "Share of the last second in which some task waited for memory (PSI).",
                report.stalled,
            )
        yield _gauge(
            "aenv_host_memory_exhausted",
            "1: the host is short of memory, and nothing is left to give back.",
            report.exhausted,
        )
        yield from _counters(report)


def _by_kind(report: MemoryReport) -> Iterator[Metric]:
    count = GaugeMetricFamily(
        "aenv_sandboxes_in_memory", "Sandboxes that hold memory.", labels=["kind"]
    )
    promised = GaugeMetricFamily(
        "aenv_sandbox_memory_promised_bytes", "Their memory limits.", labels=["kind"]
    )
    used = GaugeMetricFamily(
        "aenv_sandbox_memory_used_bytes", "The host's memory they use.", labels=["kind"]
    )
    for kind, share in report.kinds.items():
        count.add_metric([kind], share.sandboxes)
        promised.add_metric([kind], share.promised)
        used.add_metric([kind], share.used)
    yield from (count, promised, used)


def _counters(report: MemoryReport) -> Iterator[Metric]:
    demotions = CounterMetricFamily(
        "aenv_memory_demotions",
        "Machines whose memory was given back for want of it, by kind.",
        labels=["kind"],
    )
    for kind, number in report.relieved.items():
        demotions.add_metric([kind], number)
    refusals = CounterMetricFamily(
        "aenv_admission_refusals", "Creates the host could not hold, by reason.", labels=["reason"]
    )
    for reason, number in report.refusals.items():
        refusals.add_metric([reason], number)
    yield from (demotions, refusals)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)
