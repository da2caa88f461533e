"""The metrics of the service, in Prometheus' text format. Reads nothing of the host: the service says what it has seen.

Labels have few values: names of configured resources, states, calls and classes of errors; never a pod, a device or a
text. ::

    vfioctl_devices{resource,health}            devices, healthy and unhealthy
    vfioctl_resource_registered{resource}       1 if the kubelet knows the resource
    vfioctl_claims{state}                       live claims of the ledger, of all owners
    vfioctl_wedged                              devices with a write to the kernel that never returned
    vfioctl_allocate_seconds{resource,result}   how long Allocate took: ok, refused, failed
    vfioctl_failures_total{call,error}          what failed, by the class of the error
    vfioctl_build_info{version}                 1
    process_*                                   memory, processor time and descriptors of the service"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from vfioctl import __version__, errors
from vfioctl.claims.model.claim import LIVE, ClaimState
from vfioctl.errors import MissingLibrary, VfioctlError
from vfioctl.kubelet.model.status import Status

if TYPE_CHECKING:
    from prometheus_client import Metric

OK = "ok"
"""The result of an Allocate that was answered."""
_REFUSED, _FAILED = "refused", "failed"
_CHANGED_NOTHING = range(1, 5)
"""The exit codes of errors that changed nothing: the request, the host, or somebody else is in the way."""
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
"""Upper limits of the histogram's buckets."""
CALLS = frozenset(
    {"Allocate", "GetPreferredAllocation", "PreStartContainer", "Register", "PodResources", "release", "recovery"}
)
"""What may fail. Others are counted as `other`."""
_ERRORS: Mapping[str, type[VfioctlError]] = {
    name: error for name, error in vars(errors).items() if isinstance(error, type) and issubclass(error, VfioctlError)
}
_OTHER = "other"


class _Seen(NamedTuple):
    """What the service has seen last."""

    status: Status = Status(())
    claims: Mapping[ClaimState, int] = {}
    wedged: int = 0


class Metrics:
    """The metrics of one service. Its methods may be called from any thread. Raises MissingLibrary if
    prometheus-client is not installed."""

    def __init__(self) -> None:
        try:
            from prometheus_client import CollectorRegistry, Counter, Histogram, Info, ProcessCollector
        except ImportError:
            raise MissingLibrary("prometheus-client is not installed", hint="pip install 'vfioctl[kubelet]'") from None
        self._seen = _Seen()
        self._registry = CollectorRegistry()
        self._registry.register(_Snapshot(self))
        of_allocate = "vfioctl_allocate_seconds", "Time that Allocate took."
        self._seconds = Histogram(*of_allocate, ("resource", "result"), registry=self._registry, buckets=_SECONDS)
        of_failures = "vfioctl_failures", "Calls that failed, by the class of the error."
        self._failures = Counter(*of_failures, ("call", "error"), registry=self._registry)
        build = Info("vfioctl_build", "The release of vfioctl.", registry=self._registry)
        build.info({"version": __version__})
        ProcessCollector(registry=self._registry)

    def allocated(self, resource: str, seconds: float, result: str = OK) -> None:
        """Count an Allocate. `resource`: a configured one. `result`: OK, or the class of the error."""
        self._seconds.labels(resource, _result(result)).observe(seconds)
        if result != OK:
            self.failed("Allocate", result)

    def failed(self, call: str, error: str) -> None:
        """Count a call that failed. `error`: the name of its class."""
        self._failures.labels(call if call in CALLS else _OTHER, error if error in _ERRORS else _OTHER).inc()

    def update(self, status: Status, claims: Mapping[ClaimState, int], wedged: int) -> None:
        """Replace what was seen. `claims`: number of all live claims. `wedged`: number of marked devices."""
        self._seen = _Seen(status, claims, wedged)

    def text(self) -> bytes:
        """Return the text for /metrics."""
        from prometheus_client import generate_latest

        return generate_latest(self._registry)

    def seen(self) -> Iterator[Metric]:
        """Yield the gauges of what was seen last. A resource without a device of some health has 0 of it."""
        from prometheus_client.metrics_core import GaugeMetricFamily

        status, claims, wedged = self._seen
        devices = GaugeMetricFamily("vfioctl_devices", "Devices by health.", labels=("resource", "health"))
        registered = GaugeMetricFamily("vfioctl_resource_registered", "1 if registered.", labels=("resource",))
        for resource in status.resources:
            healthy = sum(device.is_healthy for device in resource.devices)
            devices.add_metric((resource.name, "healthy"), healthy)
            devices.add_metric((resource.name, "unhealthy"), len(resource.devices) - healthy)
            registered.add_metric((resource.name,), int(status.registration(resource.name).registered))
        states = GaugeMetricFamily("vfioctl_claims", "Live claims of the ledger by state.", labels=("state",))
        for state in sorted(LIVE):
            states.add_metric((state,), claims.get(state, 0))
        never_returned = "Devices with a write to the kernel that never returned."
        yield from (devices, registered, states, GaugeMetricFamily("vfioctl_wedged", never_returned, value=wedged))


class _Snapshot:
    """What prometheus-client asks for gauges."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def collect(self) -> Iterator[Metric]:
        return self._metrics.seen()


def _result(error: str) -> str:
    if error == OK:
        return OK
    known = _ERRORS.get(error)
    return _REFUSED if known and known.exit_code in _CHANGED_NOTHING else _FAILED
