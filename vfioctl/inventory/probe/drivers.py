"""Finds the drivers that match a device: modules.alias, and the driver names that modules register. May not write."""

from __future__ import annotations

from collections.abc import Iterable

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import text_of
from vfioctl.kernel.modalias import NATIVE, VFIO, Aliases
from vfioctl.kernel.protocol import PCI_DEVICES, PCI_DRIVERS, Reader


def read_aliases(kernel: Reader) -> Aliases:
    """Return the running kernel's modules.alias, parsed; empty if it has none."""
    return Aliases(aliases_text(kernel))


def aliases_text(kernel: Reader) -> str:
    """Return the text of the running kernel's modules.alias; empty if it has none."""
    try:
        release = kernel.read("/proc/sys/kernel/osrelease")
        return kernel.read(f"/lib/modules/{release}/modules.alias")
    except KernelRefused:
        return ""


def modules_for(aliases: Aliases, modalias: str) -> tuple[str, ...]:
    """Return the modules that match a device: exact matches first, VFIO modules last."""
    return tuple(module for bus in (NATIVE, VFIO) for module in aliases.modules(modalias, bus))


def drivers_of(kernel: Reader, address: str) -> tuple[str, ...]:
    """Return the drivers that match a function; none if the function is gone."""
    modalias = text_of(kernel, f"{PCI_DEVICES}/{address}/modalias")
    return tuple(dict.fromkeys(driver_names(kernel, modules_for(read_aliases(kernel), modalias)).values()))


def has_aliases(kernel: Reader, driver: str) -> bool:
    """Return whether modules.alias names the module of a registered driver: it then takes only matching devices."""
    try:
        module = kernel.link(f"{PCI_DRIVERS}/{driver}/module").rpartition("/")[2]
    except KernelRefused:
        return False  # built in, or not registered
    return read_aliases(kernel).names(module)


def driver_names(kernel: Reader, modules: Iterable[str]) -> dict[str, str]:
    """Return the name of the driver that each module has registered, or the module's name if it is not loaded."""
    return {module: _driver_name(kernel, module) for module in dict.fromkeys(modules)}


def _driver_name(kernel: Reader, module: str) -> str:
    """Return a module's driver name, which may differ: module vfio_pci, driver vfio-pci."""
    try:
        names = kernel.children(f"/sys/module/{module}/drivers")
    except KernelRefused:
        return "vfio-pci" if module == "vfio_pci" else module
    return next((name.removeprefix("pci:") for name in names if name.startswith("pci:")), module)
