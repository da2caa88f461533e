"""Which drivers could have a device: modules.alias, and the names under which modules register drivers. Reads only."""

from __future__ import annotations

from functools import cached_property

from vfioctl.errors import KernelRefused
from vfioctl.kernel.seam import Kernel
from vfioctl.modalias import NATIVE, VFIO, Aliases


class Drivers:
    """The answer for each modalias; the file is read at the first question."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._registered: dict[str, str] = {}

    def available(self, modalias: str) -> tuple[str, ...]:
        """The drivers (modules, where not loaded) that match, VFIO ones last, exact ones first."""
        modules = (module for bus in (NATIVE, VFIO) for module in self._aliases.modules(modalias, bus))
        return tuple(dict.fromkeys(self._name(module) for module in modules))

    @cached_property
    def _aliases(self) -> Aliases:
        try:
            release = self._kernel.read("/proc/sys/kernel/osrelease")
            return Aliases(self._kernel.read(f"/lib/modules/{release}/modules.alias"))
        except KernelRefused:
            return Aliases("")

    def _name(self, module: str) -> str:
        if module not in self._registered:
            self._registered[module] = _registered_name(self._kernel, module)
        return self._registered[module]


def _registered_name(kernel: Kernel, module: str) -> str:
    """The driver that a loaded module registered; the module's own name while it is not loaded.

    A driver may be called otherwise than its module (module vfio_pci, driver vfio-pci).
    """
    try:
        names = kernel.children(f"/sys/module/{module}/drivers")
    except KernelRefused:
        return "vfio-pci" if module == "vfio_pci" else module
    return next((name.removeprefix("pci:") for name in names if name.startswith("pci:")), module)
