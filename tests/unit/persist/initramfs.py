"""What tests of the initramfs have in common: the definition of a device, and stand-ins for the programs' functions."""

from __future__ import annotations

from pathlib import Path

from vfioctl.binding.model.definition import DeviceDefinition, Identity
from vfioctl.inventory.model.values import PciAddress

REPO = Path(__file__).parents[3]


def definition(address: str, place: str) -> str:
    """The definition of a GPU below a root port, as vfioctl writes it. `place`: of the port, below /sys/devices."""
    root, port = place.removeprefix("pci").split("/")
    identity = Identity(
        vendor="10de",
        device="2684",
        subsystem_vendor="10de",
        subsystem_device="1467",
        class_code="030000",
        path=f"{root}/{port.rpartition(':')[2]}/{address.rpartition(':')[2]}",
        twins=True,
    )
    return DeviceDefinition(address=PciAddress(address), driver="vfio-pci", identity=identity).text + "\n"
