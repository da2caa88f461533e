"""The metrics of the service: their names, and that no label takes a value from a pod, a device or a text."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from vfioctl import __version__, errors
from vfioctl.claims.model.claim import LIVE, ClaimState
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kubelet.model.device import Device, Resource
from vfioctl.kubelet.model.settings import ResourceSettings
from vfioctl.kubelet.model.status import Registration, Running, Status
from vfioctl.kubelet.serving.metrics import CALLS, Metrics

A100, T4 = "nvidia.com/GA100_A100", "nvidia.com/TU104GL_T4"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


def samples(metrics: Metrics) -> dict[tuple[str, ...], float]:
    """The values by name and the values of labels in the order of their names; without those of the process."""
    return {key: value for key, value in _samples(metrics) if not key[0].startswith(("process_", "python_"))}


def _samples(metrics: Metrics) -> Iterator[tuple[tuple[str, ...], float]]:
    for family in text_string_to_metric_families(metrics.text().decode()):
        for sample in family.samples:
            yield (sample.name, *(value for _, value in sorted(sample.labels.items()))), sample.value


def status(*devices: tuple[str, str], registered: bool = True) -> Status:
    """Devices as address and reason."""
    found = tuple(Device(id=address, subject=PciAddress(address), reason=reason) for address, reason in devices)
    running = Running(1, "2026-11-27T12:00:00Z", "", (Registration(A100, registered=registered),))
    resources = (
        Resource(settings=ResourceSettings(name=A100), devices=found),
        Resource(settings=ResourceSettings(name=T4)),
    )
    return Status(resources, running)


def test_what_was_seen(metrics: Metrics) -> None:
    seen = status(("0000:41:00.0", ""), ("0000:42:00.0", "held by vm/web"), ("0000:43:00.0", ""))
    metrics.update(seen, {ClaimState.HELD: 3, ClaimState.RELEASED: 500}, 1)
    assert samples(metrics) == {
        ("vfioctl_devices", "healthy", A100): 2,
        ("vfioctl_devices", "unhealthy", A100): 1,
        ("vfioctl_devices", "healthy", T4): 0,
        ("vfioctl_devices", "unhealthy", T4): 0,
        ("vfioctl_resource_registered", A100): 1,
        ("vfioctl_resource_registered", T4): 0,
        ("vfioctl_claims", "reserved"): 0,
        ("vfioctl_claims", "held"): 3,
        ("vfioctl_claims", "releasing"): 0,
        ("vfioctl_claims", "wedged"): 0,
        ("vfioctl_wedged",): 1,
        ("vfioctl_build_info", __version__): 1,
    }


def test_what_is_gone_is_no_longer_told(metrics: Metrics) -> None:
    metrics.update(status(("0000:41:00.0", "")), {}, 0)
    metrics.update(Status(()), {}, 0)
    assert not [key for key in samples(metrics) if A100 in key]


def test_allocations(metrics: Metrics) -> None:
    metrics.allocated(A100, 0.004)
    metrics.allocated(A100, 0.2)
    metrics.allocated(A100, 1.0, "DeviceInUse")
    metrics.allocated(A100, 60.0, "Stuck")
    found = samples(metrics)
    counts = {key[2]: value for key, value in found.items() if key[0] == "vfioctl_allocate_seconds_count"}
    assert counts == {"ok": 2, "refused": 1, "failed": 1}
    assert found["vfioctl_allocate_seconds_bucket", "0.005", A100, "ok"] == 1
    assert found["vfioctl_allocate_seconds_bucket", "60.0", A100, "failed"] == 1
    assert found["vfioctl_failures_total", "Allocate", "DeviceInUse"] == 1
    assert found["vfioctl_failures_total", "Allocate", "Stuck"] == 1


def test_labels_have_few_values_whatever_comes(metrics: Metrics) -> None:
    for number in range(500):
        metrics.allocated(A100, 1.0, f"pod {number}")
        metrics.failed(f"call {number}", f"0000:41:00.{number}")
        metrics.failed("Register", "HostError")
    found = samples(metrics)
    failures = {key[1:] for key in found if key[0] == "vfioctl_failures_total"}
    assert failures == {("Allocate", "other"), ("other", "other"), ("Register", "HostError")}
    assert {key[2] for key in found if key[0] == "vfioctl_allocate_seconds_count"} == {"failed"}


@pytest.mark.parametrize("name", [n for n, e in vars(errors).items() if isinstance(e, type) and n.endswith("Error")])
def test_each_class_of_errors_is_a_value(metrics: Metrics, name: str) -> None:
    for call in CALLS:
        metrics.failed(call, name)
    keys = {key for key in samples(metrics) if key[0] == "vfioctl_failures_total"}
    assert {key[2] for key in keys} == {name}


def test_the_process_is_cheap_to_watch(metrics: Metrics) -> None:
    values = dict(_samples(metrics))
    assert values["process_resident_memory_bytes",] > 1e6
    assert not [key for key in values if key[0].startswith("python_")]


def test_each_live_state_has_a_value(metrics: Metrics) -> None:
    assert {key[1] for key in samples(metrics) if key[0] == "vfioctl_claims"} == set(LIVE)
