"""Claims as values: who holds which devices, CPUs and hugepages, since when, for what. May not do input or output.

A ledger keeps thousands of claims. Listing them takes less time than importing pydantic, and a named tuple is made in a
quarter of the time that a frozen dataclass takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.values import PciAddress, Subject, is_gpu_class
from vfioctl.placement.model.claims import Hugepages, Owner
from vfioctl.units import Uuid

if TYPE_CHECKING:
    from vfioctl.core.change import Outcome, Plan
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.placement.model.placement import Placement


class ClaimState(StrEnum):
    """The states of a claim. Its devices are nobody else's in the first four of them."""

    RESERVED = "reserved"
    """Its devices are taken, and not yet in the state that it needs."""
    HELD = "held"
    RELEASING = "releasing"
    WEDGED = "wedged"
    """A change of its devices could not be finished; `vfioctl recover` and a release come next."""
    RELEASED = "released"
    FAILED = "failed"
    """Its devices could not be brought into the state that it needs, and are what they were before."""


LIVE = frozenset({ClaimState.RESERVED, ClaimState.HELD, ClaimState.RELEASING, ClaimState.WEDGED})


LABEL = "libvirt"
"""The label of a claim that lasts as long as a domain runs. Its value is the URI of the domain's libvirt."""


class Undo(StrEnum):
    """What releasing a claim does to a device: nothing, if the claim changed nothing."""

    NOTHING = ""
    UNBIND = "unbind"
    REMOVE = "remove"
    """The claim created the vGPU."""


@value_class
class ClaimedDevice:
    """A device of a claim: a function, or a mediated device on one."""

    address: str
    """The function's address; of a mediated device its parent's, or the parent's name if that is no PCI function."""
    mdev: Uuid | None = None
    identity: str = ""
    """The function's ids and class, to recognize the device after a reboot; empty for an mdev."""
    asked: bool = True
    """False for a companion, which only travels with a device that was asked for."""
    undo: Undo = Undo.NOTHING

    @property
    def is_gpu(self) -> bool:
        """Whether it is a GPU or a vGPU. A created VF has no identity."""
        return self.mdev is not None or not self.identity or is_gpu_class(self.identity.rpartition(":")[2])

    @property
    def subject(self) -> Subject:
        """What changes and holders name: the mediated device, or the function."""
        return self.mdev or PciAddress(self.address)


class Claim(NamedTuple):
    """One claim. Times are ISO 8601 in UTC."""

    id: str
    owner: Owner
    state: ClaimState
    devices: tuple[ClaimedDevice, ...]
    since: str
    boot_id: str
    """The boot in which it was made."""
    cpus: tuple[int, ...] = ()
    hugepages: tuple[Hugepages, ...] = ()
    key: str = ""
    """The caller's name for the request, which makes repeating it harmless; empty for none."""
    labels: Mapping[str, str] = MappingProxyType({})
    expires: str | None = None
    ended: str | None = None
    why: str = ""
    """What went wrong, for a claim that failed or is wedged."""
    user: str = ""
    sudo_user: str = ""
    pid: int | None = None
    command: str = ""
    plans: tuple[str, ...] = ()
    """The ids of the plans that changed its devices."""

    @property
    def is_live(self) -> bool:
        """Whether its devices are still its own."""
        return self.state in LIVE

    def is_of(self, owner: str, libvirt: str) -> bool:
        """Whether it is a claim of a domain: its owner's, and not made for one of its name at another libvirt."""
        return self.owner == owner and self.labels.get(LABEL, libvirt) == libvirt

    @property
    def gpus(self) -> int:
        """The number of GPUs and vGPUs, for quotas: of the functions that were asked for, those of a GPU's class."""
        return sum(device.asked and device.is_gpu for device in self.devices)

    @property
    def functions(self) -> tuple[PciAddress, ...]:
        """The functions that were asked for."""
        return tuple(PciAddress(device.address) for device in self.devices if device.asked and device.mdev is None)

    @property
    def mdevs(self) -> tuple[Uuid, ...]:
        return tuple(device.mdev for device in self.devices if device.mdev)


class Claimed(NamedTuple):
    """A claim, and the outcome of the change that was made for it; None if nothing had to be changed."""

    claim: Claim
    outcome: Outcome | None = None
    placement: Placement | None = None
    """Why these devices were chosen, on the host of `inventory`; None for a claim that existed already."""
    inventory: Inventory | None = None
    problem: str = ""
    """Why the CDI files could not be written again, if the configuration asks for that; an exceeded quota."""


class Preview(NamedTuple):
    """What a request would get on a host, and the plan that would be applied; None if nothing has to be changed."""

    placement: Placement
    inventory: Inventory
    plan: Plan | None = None
    claim: Claim | None = None
    """The claim that the request's key has already, which would be returned."""


class Event(NamedTuple):
    """One change of a claim's state, or of its owner or term. Times are ISO 8601 in UTC."""

    number: int
    claim: str
    state: str
    owner: str
    at: str
    boot_id: str
    user: str
    sudo_user: str
    pid: int | None
    command: str
    plan: str
    """The id of the plan that changed the devices; empty if none did."""
    why: str
