"""The metrics of the extender, in Prometheus' text format. ::

vfioctl_extender_requests_total{verb,outcome}   outcome: answered, or garbled for what is no message
vfioctl_extender_request_seconds{verb}          how long an answer takes"""

from __future__ import annotations

from vfioctl import __version__

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5)
"""Upper limits of the histogram's buckets."""


class ExtenderMetrics:
    """Counts requests. Raises ImportError without prometheus-client. For several threads."""

    def __init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector

        self._registry = CollectorRegistry()
        words = "vfioctl_extender_requests", "Requests of schedulers."
        self._requests = Counter(*words, ("verb", "outcome"), registry=self._registry)
        words = "vfioctl_extender_request_seconds", "How long an answer takes."
        self._seconds = Histogram(*words, ("verb",), registry=self._registry, buckets=_SECONDS)
        Info("vfioctl_build", "The release of vfioctl.", registry=self._registry).info({"version": __version__})
        ProcessCollector(registry=self._registry)

    def answered(self, verb: str, seconds: float, outcome: str) -> None:
        """Count a request of a known verb."""
        self._requests.labels(verb, outcome).inc()
        self._seconds.labels(verb).observe(seconds)

    def text(self) -> bytes:
        """Return the text for /metrics."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)
