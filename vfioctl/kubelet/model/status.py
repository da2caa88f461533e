"""What `vfioctl kubelet status` shows: resources, devices, registration, last errors. May not do input or output."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NamedTuple

from vfioctl.kubelet.model.device import Device, Resource
from vfioctl.untrusted_text import parse_json


class Registration(NamedTuple):
    """Whether the kubelet knows a resource. Times are ISO 8601 in UTC."""

    resource: str
    registered: bool = False
    since: str = ""
    problem: str = ""
    """Why the kubelet does not know it."""


class Failure(NamedTuple):
    """A call, or work of the service's own, that failed."""

    at: str
    resource: str
    what: str
    """Allocate, PreStartContainer, Register, PodResources, release"""
    text: str


class Running(NamedTuple):
    """What the service tells of itself, in a file that everybody may read."""

    pid: int
    since: str
    ledger: str
    """The path of the ledger whose claims it makes."""
    registrations: tuple[Registration, ...] = ()
    failures: tuple[Failure, ...] = ()
    """The last ones, the newest first."""
    pods_problem: str = ""
    """Why the kubelet did not tell which pod has which device when it was asked last."""

    @property
    def document(self) -> dict[str, Any]:
        """It as JSON has it."""
        entries = {name: [entry._asdict() for entry in getattr(self, name)] for name in ("registrations", "failures")}
        return {**self._asdict(), **entries}

    @property
    def text(self) -> str:
        """It as the file has it."""
        return json.dumps(self.document)


class Status(NamedTuple):
    """The device plugin on this host."""

    resources: tuple[Resource, ...]
    running: Running | None = None
    """None if no service runs."""
    problems: tuple[str, ...] = ()
    """What could not be looked at, and why."""

    def registration(self, resource: str) -> Registration:
        """Return whether the kubelet knows a resource."""
        told = self.running.registrations if self.running else ()
        return next((one for one in told if one.resource == resource), Registration(resource))


def status_document(status: Status) -> dict[str, Any]:
    """Return the document of `vfioctl kubelet status --json`."""
    running = status.running
    return {
        "service": running.document if running else None,
        "resources": [
            {
                "name": resource.name,
                "devices_are": resource.settings.devices,
                "consumer": resource.settings.consumer,
                "registered": status.registration(resource.name).registered,
                "problem": resource.problem or status.registration(resource.name).problem,
                "devices": [_device(device) for device in resource.devices],
            }
            for resource in status.resources
        ],
        "problems": list(status.problems),
    }


def _device(device: Device) -> Mapping[str, Any]:
    return {
        "id": device.id,
        "device": str(device.subject),
        "label": device.label,
        "healthy": device.is_healthy,
        "reason": device.reason,
        "numa_node": device.numa_node,
        "claim": device.claim or None,
        "owner": device.owner or None,
    }


def running_in(text: str) -> Running:
    """Return what the service's file says. Raises ValueError, TypeError, KeyError for another file."""
    document = parse_json(text)
    document["registrations"] = tuple(Registration(**entry) for entry in document["registrations"])
    document["failures"] = tuple(Failure(**entry) for entry in document["failures"])
    return Running(**document)
