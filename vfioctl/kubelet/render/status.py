"""Renders resources with their devices, health and pods. May not read the host."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Group as Stack
from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import Column, table
from vfioctl.console.plan_page import clock
from vfioctl.console.words import counted, plain
from vfioctl.kubelet.model.device import PROVISIONAL, Device, Resource
from vfioctl.kubelet.model.status import Failure, Running, Status

_COLUMNS = (
    Column("DEVICE"),
    Column("NODE", optional=True),
    Column("HEALTH"),
    Column("CLAIM", optional=True),
    Column("POD, OR WHY NOT"),
)
_FAILURES = 5
"""Failures that are shown; --json has all."""
NO_RESOURCE = "The configuration names no resource for the kubelet: add a table [[kubelet.resources]]."


def status_page(status: Status, *, width: int) -> RenderableType:
    """Render the device plugin of a host, for `width` columns."""
    parts: list[RenderableType] = [Text(service_line(status.running))]
    for resource in status.resources:
        parts += ["", *map(Text, _heading(resource, status))]
        if resource.devices:
            rows = [_row(device) for device in resource.shown]
            parts += table(_COLUMNS, rows, width)
    if status.running and status.running.failures:
        parts += ["", *_failures(status.running)]
    parts += [Text(f"Note: {plain(problem)}") for problem in status.problems]
    return Stack(*parts)


def service_line(running: Running | None) -> str:
    """Return whether the service runs, and whether the kubelet answers it."""
    if running is None:
        return "The service does not run: systemctl start vfioctl-kubelet, or vfioctl kubelet serve"
    words = f"The service runs since {clock(running.since)} (process {running.pid})"
    return words + (f"; the kubelet tells of no pods: {plain(running.pods_problem)}" if running.pods_problem else "")


def resource_line(resource: Resource, status: Status) -> str:
    """Return a resource in a line."""
    healthy = sum(device.is_healthy for device in resource.devices)
    state = "registered" if status.registration(resource.name).registered else "not registered"
    devices = f"{counted(len(resource.devices), 'device')}, {healthy} healthy"
    return f"{resource.name}  for {resource.settings.consumer}, {state}: {devices}"


def resource_problem(resource: Resource, status: Status) -> str:
    """Return why a resource has no devices, or the kubelet does not know it; empty if all is well."""
    registration = status.registration(resource.name)
    return plain(resource.problem or (registration.problem if not registration.registered else ""))


def _heading(resource: Resource, status: Status) -> Iterator[str]:
    yield resource_line(resource, status)
    if why := resource_problem(resource, status):
        yield f"  {why}"


def _row(device: Device) -> tuple[str, ...]:
    node = "-" if device.numa_node is None else str(device.numa_node)
    return device.id, node, health_words(device), device.claim or "-", pod_or_reason(device) or "free"


def health_words(device: Device) -> str:
    """Return whether a pod may get a device."""
    return "healthy" if device.is_healthy else "unhealthy"


def pod_words(device: Device) -> str:
    """Return the container that has a device; empty if none has."""
    return "waits for its pod" if device.owner == PROVISIONAL else device.owner.removeprefix("pod/")


def pod_or_reason(device: Device) -> str:
    """Return who has a device, and why no pod may get it; empty if a pod may."""
    return ": ".join(filter(None, (pod_words(device), plain(device.reason))))


def _failures(running: Running) -> Iterator[Text]:
    yield Text("Last failures:")
    for failure in running.failures[:_FAILURES]:
        yield Text(f"  {failure_line(failure)}")


def failure_line(failure: Failure) -> str:
    """Return a failure in a line."""
    of = f" of {failure.resource}" if failure.resource else ""
    return f"{clock(failure.at)}  {failure.what}{of}: {plain(failure.text)}"
