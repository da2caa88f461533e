"""The devices, CPUs and hugepages that were chosen for a claim, and why. May not do input or output.

Plain dataclasses, like claims. `document` is their JSON form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vfioctl.claims.model.claim import Hugepages
from vfioctl.inventory.model.values import PciAddress, Subject, format_cpu_list


@dataclass(frozen=True, slots=True)
class Rejection:
    """A device that was not chosen. `free`: whether it could have been, and others are better."""

    device: Subject
    title: str
    reason: str
    free: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """What a claim gets. Chosen devices, CPUs and nodes are in the order of the host."""

    devices: tuple[Subject, ...]
    """Those that the request names, in its order, or that were chosen. They do not include companions."""
    cpus: tuple[int, ...]
    hugepages: tuple[Hugepages, ...]
    nodes: tuple[int, ...]
    """The NUMA nodes of the devices."""
    why: tuple[str, ...]
    """Sentences that explain the choice."""
    others: tuple[Rejection, ...] = ()
    """Each other GPU of the host, with the reason."""

    @property
    def functions(self) -> tuple[PciAddress, ...]:
        """The functions among the devices."""
        return tuple(device for device in self.devices if isinstance(device, PciAddress))

    def document(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "devices": list(self.devices),
            "nodes": list(self.nodes),
            "cpus": format_cpu_list(self.cpus),
            "hugepages": [{"node": each.node, "size": each.size, "pages": each.pages} for each in self.hugepages],
            "why": list(self.why),
            "others": [rejection_document(each) for each in self.others],
        }


def rejection_document(rejection: Rejection) -> dict[str, Any]:
    """Return the JSON form of one rejection."""
    return {
        "device": rejection.device,
        "title": rejection.title,
        "free": rejection.free,
        "reason": rejection.reason,
    }
