"""Which drivers could have a device: modules.alias, and the names under which modules register drivers. Reads only."""

from __future__ import annotations

from collections.abc import Iterable

from vfioctl.errors import KernelRefused
from vfioctl.kernel.modalias import NATIVE, VFIO, Aliases
from vfioctl.kernel.protocol import Reader


def read_aliases(kernel: Reader) -> Aliases:
    """The running kernel's modules.alias; empty where it has none."""
    try:
        release = kernel.read("/proc/sys/kernel/osrelease")
        return Aliases(kernel.read(f"/lib/modules/{release}/modules.alias"))
    except KernelRefused:
        return Aliases("")


def modules_for(aliases: Aliases, modalias: str) -> tuple[str, ...]:
    """The modules that match a device, VFIO ones last, exact ones first."""
    return tuple(module for bus in (NATIVE, VFIO) for module in aliases.modules(modalias, bus))


class Registered:
    """The drivers that modules have registered, as they are called now."""

    def __init__(self, kernel: Reader) -> None:
        self._kernel = kernel
        self._names: dict[str, str] = {}

    def drivers(self, modules: Iterable[str]) -> tuple[str, ...]:
        """For each module its driver, or its own name while it is not loaded."""
        return tuple(dict.fromkeys(self._name(module) for module in modules))

    def _name(self, module: str) -> str:
        if module not in self._names:
            self._names[module] = _registered_name(self._kernel, module)
        return self._names[module]


def _registered_name(kernel: Reader, module: str) -> str:
    """A driver may be called otherwise than its module: module vfio_pci, driver vfio-pci."""
    try:
        names = kernel.children(f"/sys/module/{module}/drivers")
    except KernelRefused:
        return "vfio-pci" if module == "vfio_pci" else module
    return next((name.removeprefix("pci:") for name in names if name.startswith("pci:")), module)
