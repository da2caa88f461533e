"""The screen of the device plugin: resources, their devices with health and pods, the last failures. May not read the
host."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from vfioctl.console.columns import fact_grid
from vfioctl.console.words import listed, plain
from vfioctl.tui.model.sheet import Column, Row, Tone, cell, heading

if TYPE_CHECKING:
    from vfioctl.kubelet.model.device import Device, Resource
    from vfioctl.kubelet.model.status import Failure, Status

COLUMNS = (
    Column("DEVICE"),
    Column("NODE", right=True, rank=1),
    Column("HEALTH"),
    Column("CLAIM", rank=2),
    Column("POD, OR WHY NOT"),
)
_SERVICE, _RESOURCE, _FAILURES, _FAILURE = "service", "resource:", "failures", "failure:"


def rows(status: Status | None, problem: str = "") -> Iterator[Row]:
    """Yield the resources with their devices, then the last failures. `problem`: why they could not be read."""
    if problem:
        yield heading("unread", f"The device plugin could not be read: {problem}", tone=Tone.WARNING)
    elif status is None:
        yield heading("reading", "The device plugin is being read.", tone=Tone.DIM)
    else:
        from vfioctl.kubelet.render.status import NO_RESOURCE, service_line

        if status.resources or status.running:
            tone = Tone.PLAIN if status.running else Tone.WARNING
            yield heading(_SERVICE, service_line(status.running), tone=tone)
        if not status.resources:
            yield heading("none", NO_RESOURCE, tone=Tone.DIM)
        for resource in status.resources:
            yield from _resource(resource, status)
        yield from _failures(status.running.failures if status.running else ())
        for number, words in enumerate(status.problems):
            yield heading(f"problem:{number}", f"Note: {words}", tone=Tone.WARNING)


def _resource(resource: Resource, status: Status) -> Iterator[Row]:
    from vfioctl.kubelet.render.status import resource_line, resource_problem

    key = f"{_RESOURCE}{resource.name}"
    problem = resource_problem(resource, status)
    yield heading(key, resource_line(resource, status), is_open=True if resource.devices or problem else None)
    if problem:
        yield heading(f"problem:{resource.name}", problem, tone=Tone.WARNING)._replace(parent=key)
    for device in resource.shown:
        yield _device(device, resource, key)


def _device(device: Device, resource: Resource, parent: str) -> Row:
    from vfioctl.kubelet.render.status import health_words, pod_or_reason

    cells = (
        *(cell(device.id), cell("" if device.numa_node is None else device.numa_node)),
        cell(health_words(device), Tone.GOOD if device.is_healthy else Tone.WARNING),
        *(cell(device.claim), cell(pod_or_reason(device))),
    )
    hidden = f"{resource.name} {device.subject} {device.owner}"
    return Row(_key(resource, device), cells, 0, parent, hidden=hidden)


def _key(resource: Resource, device: Device) -> str:
    from vfioctl.kubelet.render.status import health_words

    of_parts = f"{device.claim or health_words(device)} " if resource.settings.is_shared else ""
    return f"{resource.name} {of_parts}{device.subject}"


def _failures(failures: Sequence[Failure]) -> Iterator[Row]:
    from vfioctl.kubelet.render.status import failure_line

    if failures:
        yield heading(_FAILURES, "Last failures", is_open=True)
    for number, failure in enumerate(failures):
        yield heading(f"{_FAILURE}{number}", failure_line(failure), tone=Tone.PLAIN)._replace(parent=_FAILURES)


def devices_of(keys: Sequence[str]) -> tuple[str, ...]:
    """Return the devices that rows are about, each once: one may be in several resources."""
    return tuple(dict.fromkeys(key.rpartition(" ")[2] for key in keys))


def not_uncordon(status: Status | None, keys: Sequence[str]) -> str:
    """Return why the devices of these rows need not be uncordoned; empty if they may be cordoned."""
    found = status.resources if status else ()
    devices = [device for resource in found for device in resource.shown if _key(resource, device) in keys]
    healthy = devices and all(device.is_healthy for device in devices)
    return "it is healthy, so it is not cordoned" if healthy else ""


def details(status: Status | None, problem: str, key: str) -> list[RenderableType]:
    """Return all about a row; of a heading, its whole text."""
    if status is not None:
        for resource in status.resources:
            if key == f"{_RESOURCE}{resource.name}":
                return _about_resource(resource, status)
            for device in resource.shown:
                if key == _key(resource, device):
                    return _about_device(device, resource)
    return [Text(row.cells[0].text) for row in rows(status, problem) if row.key == key]


def _about_resource(resource: Resource, status: Status) -> list[RenderableType]:
    from vfioctl.kubelet.render.status import resource_problem

    settings, registration = resource.settings, status.registration(resource.name)
    facts = (
        ("devices", str(settings.devices)),
        ("match", listed(settings.match)),
        ("type", settings.type),
        ("consumer", str(settings.consumer)),
        ("node", str(settings.node)),
        ("bind", "" if settings.bind else "no: only devices that are on VFIO already are healthy"),
        ("registered", registration.since if registration.registered else "no"),
        ("problem", resource_problem(resource, status)),
        ("socket", settings.endpoint),
    )
    return [Text(f"Resource {plain(resource.name)}", style="bold"), fact_grid(facts, style="bold")]


def _about_device(device: Device, resource: Resource) -> list[RenderableType]:
    from vfioctl.kubelet.render.status import health_words, pod_words

    facts = (
        ("resource", resource.name),
        ("id", device.id if device.id != device.subject else ""),
        ("NUMA node", "unknown" if device.numa_node is None else str(device.numa_node)),
        ("health", health_words(device)),
        ("reason", device.reason),
        ("claim", device.claim),
        ("pod", pod_words(device)),
        ("created", f"for each pod, as a {device.birth.type} on {device.birth.parent}" if device.birth else ""),
        ("label", device.label),
    )
    return [Text(f"Device {plain(str(device.subject))}", style="bold"), fact_grid(facts, style="bold")]
