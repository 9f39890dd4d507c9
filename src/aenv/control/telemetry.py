"""What the server counts, in Prometheus' terms. Labels have few values: states, outcomes, route
templates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from aenv.control.memory_telemetry import MemoryCollector
from aenv.control.pool_telemetry import PoolCollector
from aenv.models.memory import MemoryReport
from aenv.models.sandboxes import EndKind, SandboxState
from aenv.models.snapshots import RestoreMode
from aenv.node.port import NodeInfo
from aenv.store.records import Usage

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CREATE_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60)
REQUEST_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5, 30)
LIVE = tuple(
    state for state in SandboxState if state not in (SandboxState.KILLED, SandboxState.FAILED)
)

Source = Callable[[], Mapping[str, float]]


class Telemetry:
    """One registry per server. ``creates_ok``/``creates_failed`` are kept for ``/nodes`` too."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.creates_ok = 0
        self.creates_failed = 0
        self._creates = Counter(
            "aenv_sandbox_creates", "Creates by outcome.", ["outcome"], registry=self.registry
        )
        self._create_seconds = Histogram(
            "aenv_sandbox_create_seconds",
            "Time from the request to a running sandbox.",
            buckets=CREATE_BUCKETS,
            registry=self.registry,
        )
        self._ends = Counter(
            "aenv_sandbox_ends", "Ended sandboxes by kind.", ["kind"], registry=self.registry
        )
        self._pause_seconds = Histogram(
            "aenv_sandbox_pause_seconds",
            "Time to pause a sandbox.",
            buckets=CREATE_BUCKETS,
            registry=self.registry,
        )
        self._resume_seconds = Histogram(
            "aenv_sandbox_resume_seconds",
            "Time to resume a sandbox, by how it came back.",
            ["mode"],
            buckets=CREATE_BUCKETS,
            registry=self.registry,
        )
        self._forks = Counter(
            "aenv_sandbox_forks", "Forks by outcome.", ["outcome"], registry=self.registry
        )
        self._requests = Counter(
            "aenv_http_requests",
            "Control requests by route template.",
            ["method", "route", "status"],
            registry=self.registry,
        )
        self._request_seconds = Histogram(
            "aenv_http_request_seconds",
            "Time to answer a control request.",
            ["route"],
            buckets=REQUEST_BUCKETS,
            registry=self.registry,
        )
        self._states = self._gauge("aenv_sandboxes", "Sandboxes by state.", ["state"])
        self._promised = self._gauge(
            "aenv_memory_promised_bytes",
            "Memory promised to sandboxes that are neither paused nor ended.",
        )
        self._used = self._gauge("aenv_host_memory_used_bytes", "Memory in use on the host.")
        self._total = self._gauge("aenv_host_memory_total_bytes", "Memory of the host.")
        self._disk = self._gauge("aenv_host_disk_available_bytes", "Free disk of the host.")
        self._memory = MemoryCollector()
        self._pools = PoolCollector()
        self.registry.register(self._memory)
        self.registry.register(self._pools)
        self._sources: list[Source] = []
        self._gauges: dict[str, Gauge] = {}

    def _gauge(self, name: str, text: str, labels: Iterable[str] = ()) -> Gauge:
        return Gauge(name, text, list(labels), registry=self.registry)

    def created(self, seconds: float) -> None:
        self.creates_ok += 1
        self._creates.labels("ok").inc()
        self._create_seconds.observe(seconds)

    def create_failed(self, code: str) -> None:
        self.creates_failed += 1
        self._creates.labels(code).inc()

    def paused(self, seconds: float) -> None:
        self._pause_seconds.observe(seconds)

    def resumed(self, mode: RestoreMode | None, seconds: float) -> None:
        self._resume_seconds.labels(mode.value if mode else "boot").observe(seconds)

    def forked(self, made: int, failed: int) -> None:
        self._forks.labels("ok").inc(made)
        self._forks.labels("failed").inc(failed)

    def ended(self, kind: EndKind) -> None:
        self._ends.labels(kind.value).inc()

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method, route, str(status)).inc()
        self._request_seconds.labels(route).observe(seconds)

    def add_source(self, source: Source) -> None:
        """Figures read at each scrape, by metric name (the proxy's counters)."""
        self._sources.append(source)

    def render(
        self,
        usage: Mapping[SandboxState, Usage],
        host: NodeInfo | None,
        memory: MemoryReport | None = None,
    ) -> bytes:
        """The text of ``/metrics`` for the figures of this moment."""
        self._memory.report = memory
        self._pools.report = host.pools if host is not None else None
        for state in LIVE:
            self._states.labels(state.value).set(usage.get(state, Usage()).sandboxes)
        held = (used for state, used in usage.items() if state is not SandboxState.PAUSED)
        self._promised.set(sum(used.memory_mb for used in held) * 2**20)
        if host is not None:
            self._used.set(host.memory_total - host.memory_available)
            self._total.set(host.memory_total)
            self._disk.set(host.disk_available)
        for source in self._sources:
            for name, value in source().items():
                if name not in self._gauges:
                    self._gauges[name] = self._gauge(name, "Counted by the data plane.")
                self._gauges[name].set(value)
        return generate_latest(self.registry)
