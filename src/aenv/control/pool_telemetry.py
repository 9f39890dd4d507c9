"""The warm pools in Prometheus' terms."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from aenv.models.pools import PoolReport


class PoolCollector(Collector):
    """Shows ``report``; nothing while there is none."""

    def __init__(self) -> None:
        self.report: PoolReport | None = None

    def describe(self) -> list[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        report = self.report
        if report is None:
            return
        machines = _by_template("aenv_pool_machines", "Machines that wait for creates.")
        wanted = _by_template("aenv_pool_wanted_machines", "Machines that should wait.")
        memory = _by_template("aenv_pool_memory_bytes", "Memory of machines that wait.")
        creates = CounterMetricFamily(
            "aenv_pool_creates",
            "Creates a pool was asked to serve, by outcome (hit, miss).",
            labels=["template", "outcome"],
        )
        for share in report.shares:
            machines.add_metric([share.template], share.machines)
            wanted.add_metric([share.template], share.wanted)
            memory.add_metric([share.template], share.memory)
            creates.add_metric([share.template, "hit"], share.hits)
            creates.add_metric([share.template, "miss"], share.misses)
        yield from (machines, wanted, memory, creates)
        yield GaugeMetricFamily(
            "aenv_template_images", "Memory images of templates.", value=report.images
        )
        yield GaugeMetricFamily(
            "aenv_template_image_bytes", "Disk they take.", value=report.image_bytes
        )


def _by_template(name: str, text: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, text, labels=["template"])
