"""How a simulated driver is bound to a PCI device and unbound. Each rule is named after a kernel function. Sources:
drivers/base/bus.c, drivers/base/dd.c, drivers/base/driver.c, drivers/pci/pci-driver.c of Linux 6.1, and what the
contract suite observed on a real one."""

from __future__ import annotations

import errno as errnos
import posixpath
from collections.abc import Iterator
from functools import lru_cache

from vfioctl.kernel.modalias import NATIVE, Aliases
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, PCI_DRIVERS
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated import class_devices, groups, mediated, vendor
from vfioctl.kernel.simulated.faults import Refusal
from vfioctl.kernel.simulated.groups import driver_of, group_of, is_vfio

PAGE_SIZE = 4096
NO_OVERRIDE = "(null)"


def driver_set_override(tree: Tree, device: str, name: str) -> None:
    tree.put(f"{device}/driver_override", name or NO_OVERRIDE)


def driver_override_store(tree: Tree, path: str, value: str) -> None:
    if len(value) >= PAGE_SIZE - 1:
        raise Refusal(errnos.EINVAL)
    # strlen() of the value, then up to the newline: a NUL byte or a newline at the start clears it.
    driver_set_override(tree, posixpath.dirname(path), value.split("\0", 1)[0].split("\n", 1)[0])


def drivers_autoprobe_store(tree: Tree, path: str, value: str) -> None:
    tree.put(path, "0" if value.startswith("0") else "1")


def bind_store(tree: Tree, path: str, value: str) -> None:
    driver, device = path.split("/")[-2], device_called(tree, value)
    if not pci_match_device(tree, device, driver):
        raise Refusal(errnos.ENODEV)
    if driver_of(tree, device):
        raise Refusal(errnos.EBUSY)
    really_probe(tree, device, driver)


def drivers_probe_store(tree: Tree, _: str, value: str) -> None:
    device = device_called(tree, value)
    if driver_of(tree, device) is None:
        device_attach(tree, device)


def device_attach(tree: Tree, device: str) -> None:
    """Binds the first registered driver that matches. That none matches is no error."""
    for driver in sorted(tree.directories.get(PCI_DRIVERS, ())):
        if pci_match_device(tree, device, driver):
            try:
                really_probe(tree, device, driver)
            except Refusal:
                raise Refusal(errnos.EINVAL) from None  # the caller of bus_rescan_devices_helper hides the errno
            return


def driver_attach(tree: Tree, driver: str) -> None:
    for device in tuple(devices(tree)):
        if driver_of(tree, device) is None and pci_match_device(tree, device, driver):
            try:
                really_probe(tree, device, driver)
            except Refusal:
                continue  # __driver_attach goes on with the next device


def pci_match_device(tree: Tree, device: str, driver: str) -> bool:
    """With an override only the driver that it names matches; otherwise the drivers with matching ids."""
    override = tree.files.get(f"{device}/driver_override", NO_OVERRIDE)
    if override != NO_OVERRIDE:
        return override == driver
    if not pci_device_can_probe(tree, device):
        return False
    if tree.properties.get(f"sim:{posixpath.basename(device)}", {}).get("native") == driver:
        return True
    return driver in native_drivers(tree, device)


def pci_device_can_probe(tree: Tree, device: str) -> bool:
    """Without an override a VF gets a driver only if its PF allows it, even by a write to the driver's `bind`."""
    if f"{device}/physfn" not in tree.links:
        return True
    return tree.files.get(tree.resolve(f"{device}/physfn/sriov_drivers_autoprobe"), "1") != "0"


def really_probe(tree: Tree, device: str, driver: str) -> None:
    if is_vfio(driver):
        vfio_pci_core_register_device(tree, device)
    address = posixpath.basename(device)
    home = f"{PCI_DRIVERS}/{driver}"
    groups.link(tree, f"{device}/driver", home)
    groups.link(tree, f"{home}/{address}", device)
    if is_vfio(driver):
        groups.vfio_group_create(tree, group_of(tree, device))
        class_devices.vfio_pci_core_runtime_pm(tree, device, registered=True)
    else:
        class_devices.class_devices_back(tree, device)
        vendor.folders_back(tree, device, driver)


def device_driver_detach(tree: Tree, device: str) -> None:
    """Raises WouldBlock where it waits for a mediated device; `device_remove` then does the rest."""
    driver, group = driver_of(tree, device), group_of(tree, device)
    tree.remove(f"{device}/driver")
    tree.remove(f"{PCI_DRIVERS}/{driver}/{posixpath.basename(device)}")
    if driver and is_vfio(driver):
        groups.vfio_device_del(tree, device)
        groups.vfio_group_release(tree, group)
        class_devices.vfio_pci_core_runtime_pm(tree, device, registered=False)
    else:
        class_devices.class_devices_gone(tree, device)
    device_remove(tree, device, driver or "")


def device_remove(tree: Tree, device: str, driver: str) -> None:
    """The part of unbinding that may wait. Called again after the device was released."""
    mediated.mdev_unregister_parent(tree, device)
    vendor.folders_gone(tree, device, driver)


def vfio_pci_core_register_device(tree: Tree, device: str) -> None:
    if group_of(tree, device) is None:
        raise Refusal(errnos.EINVAL)
    if any(name.startswith("virtfn") for name in tree.directories[device]):
        raise Refusal(errnos.EBUSY)  # "Cannot bind to PF with SR-IOV enabled"
    groups.vfio_device_add(tree, device)


def devices(tree: Tree) -> Iterator[str]:
    """All functions, in address order."""
    return (tree.resolve(f"{PCI_DEVICES}/{address}") for address in sorted(tree.directories.get(PCI_DEVICES, ())))


def device_called(tree: Tree, value: str) -> str:
    """The function whose address was written (bus_find_device_by_name). Raises Refusal (ENODEV)."""
    address = value.removesuffix("\n")
    if not PCI_ADDRESS.fullmatch(address) or address not in tree.directories.get(PCI_DEVICES, ()):
        raise Refusal(errnos.ENODEV)
    return tree.resolve(f"{PCI_DEVICES}/{address}")


def native_drivers(tree: Tree, device: str) -> set[str]:
    """The drivers that the modules' aliases name."""
    modules = _native_modules(modules_alias(tree), tree.files.get(f"{device}/modalias", ""))
    names = (name for module in modules for name in tree.directories.get(f"/sys/module/{module}/drivers", ()))
    return {name.removeprefix("pci:") for name in names}


@lru_cache(maxsize=4096)
def _native_modules(aliases: str, modalias: str) -> tuple[str, ...]:
    return Aliases(aliases).modules(modalias, NATIVE)


def modules_alias(tree: Tree) -> str:
    """The text of modules.alias."""
    release = tree.files.get("/proc/sys/kernel/osrelease", "")
    return tree.files.get(f"/lib/modules/{release}/modules.alias", "")
