"""Which drivers could have a device: modules.alias, and the names under which modules register drivers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from vfioctl.errors import KernelRefused
from vfioctl.kernel.seam import Kernel
from vfioctl.modalias import NATIVE, VFIO, Aliases


def read_available(kernel: Kernel, modaliases: Iterable[str]) -> Mapping[str, tuple[str, ...]]:
    """By modalias: the drivers (modules, where not loaded) that match, VFIO ones last, exact ones first."""
    distinct = sorted(set(modaliases))
    aliases = Aliases(_modules_alias(kernel), distinct)
    registered: dict[str, str] = {}
    return {
        modalias: tuple(
            dict.fromkeys(
                registered.setdefault(module, _registered_name(kernel, module))
                for bus in (NATIVE, VFIO)
                for module in aliases.modules(modalias, bus)
            )
        )
        for modalias in distinct
    }


def _modules_alias(kernel: Kernel) -> str:
    try:
        return kernel.read(f"/lib/modules/{kernel.read('/proc/sys/kernel/osrelease')}/modules.alias")
    except KernelRefused:
        return ""


def _registered_name(kernel: Kernel, module: str) -> str:
    """The driver that a loaded module registered; the module's own name while it is not loaded.

    A driver may be called otherwise than its module (module vfio_pci, driver vfio-pci).
    """
    try:
        names = kernel.children(f"/sys/module/{module}/drivers")
    except KernelRefused:
        return "vfio-pci" if module == "vfio_pci" else module
    return next((name.removeprefix("pci:") for name in names if name.startswith("pci:")), module)
