"""The resource `d3cold_allowed`: whether a device may enter D3cold (no power). Some devices never wake from it."""

from __future__ import annotations

from typing import ClassVar

from vfioctl.binding.resources.released import ReleasedFile


class D3Cold(ReleasedFile):
    kind: ClassVar[str] = "d3cold"
    path: ClassVar[str] = "/sys/bus/pci/devices/{}/d3cold_allowed"
    value: ClassVar[str] = "[01]"
    released: ClassVar[str] = "0"
    why: ClassVar[str] = "from D3cold some devices never wake"
