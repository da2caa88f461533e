"""What Linux does on a write, as changes of a tree. Each rule is named after the kernel function it mirrors.

This module selects the rule for a file, loads modules, and decides whether a group is viable.
Sources: drivers/vfio/group.c, drivers/iommu/iommu.c of Linux 6.1, and what the contract suite observed on a real one.
"""

from __future__ import annotations

import errno as errnos
import posixpath
import re
from collections.abc import Callable

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.modalias import NATIVE, VFIO
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DRIVERS
from vfioctl.kernel.recorded.tree import Node, Tree
from vfioctl.kernel.simulated import class_devices, drivers, groups, mediated, vendor, virtual
from vfioctl.kernel.simulated.groups import driver_of, group_of, is_vfio
from vfioctl.kernel.simulated.refusal import Refusal

__all__ = [
    "driver_of",
    "group_of",
    "is_vfio",
    "load_module",
    "remember_natives",
    "resume",
    "vfio_group_ioctl_get_status",
    "write",
]

_MANAGED_DMA = ("pcieport", "pci-stub")
# Drivers whose name differs from their module's: struct pci_driver.name in the sources.
_DRIVER_OF_MODULE = {"vfio_pci": "vfio-pci", "xhci_pci": "xhci_hcd", "bochs": "bochs-drm", "pci_stub": "pci-stub"}


def write(tree: Tree, path: str, value: str) -> None:
    """One write to one file. Raises KernelRefused, or WouldBlock when it would wait for a holder of a device."""
    resolved = tree.resolve(path)
    parent, _, name = resolved.rpartition("/")
    try:
        if not value:
            return  # kernfs_fop_write_iter does not call the store function for an empty write
        if name == "driver_override" and resolved in tree.files:
            drivers.driver_override_store(tree, parent, value)
        elif name == "rom" and PCI_ADDRESS.fullmatch(posixpath.basename(parent)):
            pci_write_rom(tree, parent, value)
        elif store := _store_of(tree, resolved):
            store(tree, resolved, value)
        elif parent == "/sys/bus/pci" and name == "drivers_probe":
            drivers.drivers_probe_store(tree, value)
        elif parent == "/sys/bus/pci" and name == "drivers_autoprobe":
            tree.put(resolved, "0" if value.startswith("0") else "1")
        elif parent.startswith(f"{PCI_DRIVERS}/") and parent in tree.directories and name in ("bind", "unbind"):
            {"bind": drivers.bind_store, "unbind": _unbind}[name](tree, posixpath.basename(parent), value)
        else:
            raise Refusal(errnos.EACCES if tree.exists(resolved) else errnos.ENOENT)
    except Refusal as refusal:
        raise KernelRefused(path, refusal.errno, value) from None


def _store_of(tree: Tree, resolved: str) -> Callable[[Tree, str, str], None] | None:
    if not tree.exists(resolved):
        return mediated.store_of(tree, resolved)
    if virtual.NUMVFS.fullmatch(resolved):
        return virtual.sriov_numvfs_store
    return class_devices.store_of(resolved) or vendor.store_of(resolved) or mediated.store_of(tree, resolved)


def _unbind(tree: Tree, driver: str, value: str) -> None:
    device = drivers.unbind_store(tree, driver, value)
    virtual.remove_vfs_of(tree, device, driver)


def resume(tree: Tree, path: str, value: str) -> None:
    """Finishes a write that waited, after the device was released. Raises KernelRefused, WouldBlock."""
    driver, _, verb = path.removeprefix(f"{PCI_DRIVERS}/").partition("/")
    if verb != "unbind":
        write(tree, path, value)
        return
    device = drivers.device_called(tree, value)
    drivers.device_remove(tree, device, driver)
    virtual.remove_vfs_of(tree, device, driver)


def pci_write_rom(tree: Tree, device: str, value: str) -> None:
    """Switches the ROM off for two bytes of which the first is `0`, and on for anything else."""
    facts = tree.properties.get(f"sim:{posixpath.basename(device)}", {})
    if "rom" not in facts:
        raise Refusal(errnos.ENOENT)
    facts["rom_enabled"] = str(int(not (value.startswith("0") and len(value) == 2)))


def vfio_group_ioctl_get_status(tree: Tree, group: int) -> bool:
    """Whether every member is unbound, or on a driver without DMA of its own (iommu_group_dma_owner_claimed)."""
    if f"/dev/vfio/{group}" not in tree.nodes:
        raise KernelRefused(f"/dev/vfio/{group}", errnos.ENOENT)
    if class_devices.open_by(tree, f"/dev/vfio/{group}"):
        raise KernelRefused(f"/dev/vfio/{group}", errnos.EBUSY)  # vfio_group_fops_open: one opener at a time
    names = [driver_of(tree, member) for member in groups.members_of(tree, str(group))]
    return all(name is None or is_vfio(name) or name in _MANAGED_DMA for name in names)


def load_module(tree: Tree, module: str) -> None:
    """request_module, then driver_attach for unbound devices. Raises HostError."""
    module = module.replace("-", "_")
    if f"/sys/module/{module}" in tree.directories:
        return
    if module not in _known_modules(tree):
        error = HostError(f"module {module} could not be loaded", hint="install the package that provides it")
        error.kernel_said = f"modprobe: FATAL: Module {module} not found"
        raise error
    driver = _DRIVER_OF_MODULE.get(module, module)
    tree.put_directory(f"/sys/module/{module}")
    tree.put_link(f"/sys/module/{module}/drivers/pci:{driver}", f"../../../bus/pci/drivers/{driver}")
    tree.put_directory(f"{PCI_DRIVERS}/{driver}")
    tree.put_link(f"{PCI_DRIVERS}/{driver}/module", f"../../../../module/{module}")
    if is_vfio(driver):
        tree.put_node(groups.CONTAINER, Node("c", 10, 196))
    if tree.files.get("/sys/bus/pci/drivers_autoprobe", "1") == "1":
        drivers.driver_attach(tree, driver)


def _known_modules(tree: Tree) -> set[str]:
    release = tree.files.get("/proc/sys/kernel/osrelease", "")
    listed = re.findall(r"(?<![^/\s])([^/\s]+)\.ko", tree.files.get(f"/lib/modules/{release}/modules.dep", ""))
    aliased = re.findall(rf"^alias (?:{NATIVE}|{VFIO}):\S+ (\S+)$", drivers.modules_alias(tree), re.M)
    return {name.replace("-", "_") for name in (*listed, *aliased)}


def remember_natives(tree: Tree) -> None:
    """Records the driver of each device, for drivers whose ids are in no file (built in)."""
    for device in tuple(drivers.devices(tree)):
        driver, subject = driver_of(tree, device), f"sim:{posixpath.basename(device)}"
        if not driver or is_vfio(driver) or subject in tree.properties:
            continue
        if driver not in drivers.native_drivers(tree, device):
            tree.properties[subject] = {"native": driver}
