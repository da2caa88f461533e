"""What of a host is compared with a document. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping

from vfioctl.core.frozen import record_class
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.vgpu.model.intents import CreateVgpuIntent
from vfioctl.vgpu.model.vgpu import Vgpus


@record_class
class BoundAtBoot:
    """The definition of a device that vfioctl binds at boot."""

    driver: str
    name: PciAddress
    """The address in the definition: another one if the device has moved since."""


@record_class
class HostFacts:
    """One host at one moment."""

    inventory: Inventory
    vgpus: Vgpus
    devices_at_boot: Mapping[PciAddress, BoundAtBoot]
    """By the present address."""
    vfs_at_boot: Mapping[PciAddress, int]
    """By the address of the PF."""
    vgpus_at_boot: Mapping[str, CreateVgpuIntent]
    """By UUID, or the address of the VF."""
    damaged: Mapping[str, str]
    """Why a definition cannot be used, by the device or UUID that its file is named after."""
