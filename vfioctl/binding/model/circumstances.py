"""What a plan must know besides the inventory: who uses the devices, and the settings that go with them."""

from __future__ import annotations

from pydantic import Field

from vfioctl.core.setting import Reading
from vfioctl.inventory.model.holders import Holders
from vfioctl.inventory.model.values import PciAddress, Value


class Circumstances(Value):
    """Of the functions that a change may move."""

    holders: Holders = Holders(devices=())
    readings: tuple[Reading, ...] = ()
    can_be_reset: frozenset[PciAddress] = Field(default=frozenset(), description="those that have a file `reset`")
    idle_devices_sleep: bool | None = Field(default=None, description="vfio-pci's disable_idle_d3, the other way round")


NOTHING_KNOWN = Circumstances()
