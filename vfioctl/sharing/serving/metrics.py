"""The metrics of the service, in Prometheus' text format. Reads nothing of the host.

Names of control groups come from users of the host: there is a bounded number, and they are escaped. ::

    gpu_time_seconds_total{cgroup,gpu,source}        GPU time; with source lease how long a GPU is passed through
    gpu_time_error_seconds_total{cgroup,gpu,source}  by how much it may be more or less
    gpu_time_share{cgroup,gpu}                       part of the GPU time that was used in the last half minute
    gpu_time_quota{cgroup}                           part that the weights give
    gpu_memory_used_bytes{cgroup,gpu}                memory of a GPU that its processes have
    gpu_frozen{cgroup}                               1 if the group is frozen by this service
    gpu_frozen_seconds_total{cgroup}                 how long it was frozen
    gpu_freeze_latency_seconds                       from the write until all processes of a group are frozen"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from vfioctl import __version__
from vfioctl.console.words import plain
from vfioctl.errors import MissingLibrary
from vfioctl.sharing.serving.containers import Known, container_metrics
from vfioctl.sharing.serving.totals import Totals

if TYPE_CHECKING:
    from prometheus_client import Metric

_SECONDS = (0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1, 5)
"""Upper limits of the histogram's buckets."""
_LABELS = ("cgroup", "gpu", "source")


class ShareMetrics:
    """The metrics of one service. `quotas`: part of each group by the weights. Raises MissingLibrary."""

    def __init__(
        self, totals: Totals, quotas: Mapping[str, float], containers: Callable[[], Known] | None = None
    ) -> None:
        """`containers`: returns what is known of containers, if they are to be shown."""
        try:
            from prometheus_client import CollectorRegistry, Histogram, Info, ProcessCollector
        except ImportError:
            raise MissingLibrary("prometheus-client is not installed", hint="pip install 'vfioctl[share]'") from None
        self._totals, self._quotas, self._containers = totals, quotas, containers
        self._registry = CollectorRegistry()
        self._registry.register(_Snapshot(self))
        latency = "gpu_freeze_latency_seconds", "Time from the write until all processes of a group are frozen."
        self._latency = Histogram(*latency, registry=self._registry, buckets=_SECONDS)
        Info("vfioctl_build", "The release of vfioctl.", registry=self._registry).info({"version": __version__})
        ProcessCollector(registry=self._registry)

    def froze(self, seconds: float) -> None:
        """Count a freeze that took so long."""
        self._latency.observe(seconds)

    def text(self) -> bytes:
        """Return the text for /metrics. Called in threads."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def seen(self) -> Iterator[Metric]:
        """Yield what is counted now."""
        from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily

        counted = self._totals.counted()
        times = CounterMetricFamily("gpu_time_seconds", "GPU time of control groups.", labels=_LABELS)
        errors = CounterMetricFamily("gpu_time_error_seconds", "By how much GPU time may be off.", labels=_LABELS)
        for (group, gpu, source), (seconds, error) in sorted(counted.times.items()):
            times.add_metric((plain(group), gpu, str(source)), seconds)
            errors.add_metric((plain(group), gpu, str(source)), error)
        shares = GaugeMetricFamily("gpu_time_share", "Part of the used GPU time.", labels=_LABELS[:2])
        for (group, gpu), share in sorted(counted.shares.items()):
            shares.add_metric((plain(group), gpu), share)
        memory = GaugeMetricFamily("gpu_memory_used_bytes", "Memory that is in use.", labels=_LABELS[:2])
        for (group, gpu), size in sorted(counted.memory.items()):
            memory.add_metric((plain(group), gpu), size)
        quotas = GaugeMetricFamily("gpu_time_quota", "Part that the weights give.", labels=_LABELS[:1])
        frozen = GaugeMetricFamily("gpu_frozen", "1 if the group is frozen.", labels=_LABELS[:1])
        froze = CounterMetricFamily("gpu_frozen_seconds", "How long groups were frozen.", labels=_LABELS[:1])
        for group, quota in sorted(self._quotas.items()):
            quotas.add_metric((group,), quota)
            frozen.add_metric((group,), int(group in counted.frozen))
            froze.add_metric((group,), counted.frozen_seconds.get(group, 0.0))
        yield from (times, errors, shares, memory, quotas, frozen, froze)
        if self._containers:
            yield from container_metrics(self._containers(), counted)


class _Snapshot:
    """What prometheus-client asks."""

    def __init__(self, metrics: ShareMetrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.seen()
