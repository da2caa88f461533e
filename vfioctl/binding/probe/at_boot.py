"""What a boot binds to VFIO: the definitions of devices, and their udev rules. Reads only.

Imports what reads definitions only where there are some: it takes long."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from vfioctl.kernel.host_paths import DEVICE_RULE, DEVICES, UDEV_RULES
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.protocol import PCI_ADDRESS, FileReader

if TYPE_CHECKING:
    from vfioctl.binding.model.definition import DeviceDefinition
    from vfioctl.inventory.model.functions import Function, Inventory
    from vfioctl.inventory.model.values import PciAddress

_BEGIN, _, _END = DEVICE_RULE.partition("{}")


class AtBoot:
    """Reads the files of one host."""

    def __init__(self, kernel: FileReader) -> None:
        self._kernel = kernel

    def definitions(self) -> tuple[Mapping[str, DeviceDefinition], Mapping[str, str]]:
        """Return the definitions of devices that are bound at boot, by path, and why others cannot be used."""
        if not names_in(self._kernel, DEVICES):
            return {}, {}
        from vfioctl.binding.probe.definitions import read_definitions

        return read_definitions(self._kernel)

    def rules(self) -> Mapping[str, str]:
        """Return the text of each udev rule about one device, by the device's address; empty for an unreadable one."""
        names = (name for name in names_in(self._kernel, UDEV_RULES) if name.startswith(_BEGIN) and name.endswith(_END))
        addresses = (name.removeprefix(_BEGIN).removesuffix(_END) for name in names)
        return {
            address: text_of(self._kernel, f"{UDEV_RULES}/{DEVICE_RULE.format(address)}")
            for address in addresses
            if PCI_ADDRESS.fullmatch(address)
        }

    def texts(self, addresses: Sequence[PciAddress]) -> Mapping[PciAddress, tuple[str, str]]:
        """Return the texts of the definition and the udev rule of each function; empty where there is no file."""
        from vfioctl.binding.probe.definitions import read_files

        return read_files(self._kernel, addresses)

    def moved(self, inventory: Inventory, functions: Sequence[Function]) -> Mapping[PciAddress, tuple[str, str]]:
        """Return the texts of the files of earlier addresses of these functions."""
        from vfioctl.binding.model.definition import locate

        here, (definitions, _) = {function.address for function in functions}, self.definitions()
        known = ((definition.address, locate(definition, inventory).address) for definition in definitions.values())
        return self.texts([before for before, now in known if now in here and before != now])
