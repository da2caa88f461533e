"""The devices of extended resources, with their health, and the pods that have them. May not do input or output."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from vfioctl.claims.model.cdi import device_name
from vfioctl.core.frozen import value_class
from vfioctl.errors import BadSpec
from vfioctl.inventory.model.values import Subject
from vfioctl.kubelet.model.settings import Consumer, ResourceSettings
from vfioctl.placement.model.claims import PROVISIONAL, Owner

__all__ = ["GONE", "LABEL", "PROVISIONAL", "Birth", "Device", "Listing", "Pod", "Resource", "device_id", "dns_label"]

LABEL = "kubelet"
"""The label of the device plugin's claims. Its value is the resource."""
GONE = "it is gone"
"""The reason of a device that a pod has, and the host has not."""


class Pod(NamedTuple):
    """A container of a pod."""

    namespace: str
    name: str
    container: str

    @property
    def is_valid(self) -> bool:
        """Whether these are names as Kubernetes allows them."""
        try:
            return self.owner != PROVISIONAL
        except BadSpec:
            return False

    @property
    def owner(self) -> Owner:
        """It as the owner of claims. Raises BadSpec for names that Kubernetes does not allow."""
        return Owner(f"pod/{self.namespace}/{self.name}/{self.container}")


class Birth(NamedTuple):
    """How a vGPU is created when a pod gets it: on this parent."""

    type: str
    parent: str


@value_class
class Device:
    """One device of a resource at one moment."""

    id: str
    """What the kubelet calls it: at most 63 characters, the same after each reboot."""
    subject: Subject
    """The function, or the mediated device."""
    numa_node: int | None = None
    reason: str = ""
    """Why it is unhealthy; empty if it is healthy."""
    claim: str = ""
    """The id of the claim by which a pod of this resource has it."""
    owner: str = ""
    """The owner of that claim."""
    birth: Birth | None = None
    """For a vGPU that need not exist before a pod gets it."""
    under: tuple[str, ...] = ()
    """What it is a part of: its PF, or its parent and that one's PF."""

    @property
    def is_healthy(self) -> bool:
        return not self.reason

    @property
    def label(self) -> str:
        """Its name as a DNS label (RFC 1123)."""
        return dns_label(self.subject)


def device_id(subject: Subject, resource: ResourceSettings) -> str:
    """Return the kubelet's name for a device: its address or UUID. Kata Containers looks for a CDI device of this name,
    in which the specification allows no colon."""
    return device_name(subject) if resource.consumer is Consumer.KATA else str(subject)


def dns_label(subject: Subject) -> str:
    """Return `pci-0000-41-00-0`, or `mdev-UUID`: lower-case letters, digits and hyphens, at most 63 of them."""
    kind = "mdev" if "-" in subject else "pci"
    return f"{kind}-{re.sub('[^a-z0-9]', '-', str(subject).lower())}"


class Listing(NamedTuple):
    """What the kubelet tells of its pods."""

    pods: Mapping[tuple[str, str], Sequence[Pod]]
    """The containers that have a device, by resource and id: more than one is an error of somebody."""


@value_class
class Resource:
    """A resource and its devices at one moment."""

    settings: ResourceSettings
    devices: tuple[Device, ...] = ()
    problem: str = ""
    """Why its devices could not all be found, as for a type of vGPU that no card has."""

    @property
    def shown(self) -> tuple[Device, ...]:
        """The devices as lists for people have them: parts of a GPU that differ by number only are one."""
        if not self.settings.is_shared:
            return self.devices
        alike: dict[tuple[str, str, str], list[Device]] = {}
        for part in self.devices:
            alike.setdefault((part.subject, part.claim, part.reason), []).append(part)
        return tuple(replace(parts[0], id=f"{len(parts)} of {parts[0].subject}") for parts in alike.values())

    @property
    def name(self) -> str:
        return self.settings.name
