"""What of a host is compared with a document. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from vfioctl.core.frozen import record_class
from vfioctl.inventory.model.functions import Inventory
from vfioctl.inventory.model.values import PciAddress
from vfioctl.vgpu.model.intents import CreateVgpuIntent
from vfioctl.vgpu.model.vgpu import Vgpu


@record_class
class BoundAtBoot:
    """The definition of a device that vfioctl binds at boot."""

    driver: str
    name: PciAddress
    """The address in the definition: another one if the device has moved since."""


@dataclass(frozen=True, kw_only=True)
class HostFacts:
    """One host at one moment."""

    inventory: Inventory
    vgpus: tuple[Vgpu, ...]
    """Those that exist."""
    devices_at_boot: Mapping[PciAddress, BoundAtBoot]
    """By the present address."""
    vfs_at_boot: Mapping[PciAddress, int]
    """By the address of the PF."""
    vgpus_at_boot: Mapping[str, CreateVgpuIntent]
    """By UUID, or the address of the VF."""
    damaged: Mapping[str, str]
    """Why a definition of a device cannot be used, by the address that its file is named after."""
    damaged_vgpus: Mapping[str, str]
    """Why a definition of a vGPU, or of VFs, cannot be used, by its UUID or address."""
    missing: Mapping[str, str]
    """Why a device that is bound at boot is not found, by the address in its definition."""

    @cached_property
    def vgpu_by_id(self) -> Mapping[str, Vgpu]:
        return {vgpu.id: vgpu for vgpu in self.vgpus}
