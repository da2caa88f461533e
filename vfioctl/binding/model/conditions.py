"""Planning inputs besides the inventory: holders of devices and settings around them. May not do input or output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from vfioctl.core.frozen import value_class
from vfioctl.inventory.model.holders import Holders
from vfioctl.inventory.model.values import PciAddress

GPU_SERVICES = (
    "nvidia-persistenced.service",
    "nvidia-powerd.service",
    "nvidia-dcgm.service",
    "dcgm.service",
    "nvidia-dcgm-exporter.service",
    "dcgm-exporter.service",
)
"""Services that only monitor GPUs, which `--stop-services` may stop. Must not contain display managers."""


@value_class
class Reading:
    """The current value of a setting; `value` is None if it could not be read."""

    kind: str
    name: str
    """The resource's name: a file, a PCI address, a platform device or a unit, depending on the kind."""
    address: PciAddress
    """The function that has the setting."""
    value: str | None

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.name


@value_class
class Circumstances:
    """Holders and settings of the functions that a change may move."""

    holders: Holders = field(default_factory=lambda: Holders(devices=()))
    readings: tuple[Reading, ...] = ()
    selective: bool = False
    """Whether the driver asked for takes only devices that match its aliases in modules.alias."""
    idle_devices_sleep: bool | None = None
    """The inverse of vfio-pci's parameter disable_idle_d3."""
    at_boot: Mapping[PciAddress, tuple[str, str]] = field(default_factory=dict)
    """The texts of the definition and the udev rule of functions, empty without a file."""
    moved: Mapping[PciAddress, tuple[str, str]] = field(default_factory=dict)
    """The same of addresses at which these functions were before the kernel numbered them anew."""


NOTHING_KNOWN = Circumstances()
