"""What Linux does on a write, as changes of a tree. Each rule is named after the kernel function it mirrors. Has the
table of the files that can be written; loads modules, and decides whether a group is viable. Sources:
drivers/vfio/group.c, drivers/iommu/iommu.c of Linux 6.1, and what the contract suite observed on a real one."""

from __future__ import annotations

import errno as errnos
import posixpath
import re
from collections.abc import Callable

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.modalias import NATIVE, VFIO
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DRIVERS
from vfioctl.kernel.recorded.tree import Node, Tree
from vfioctl.kernel.simulated import capacity, class_devices, drivers, groups, mediated, vendor, virtual
from vfioctl.kernel.simulated.faults import Refusal
from vfioctl.kernel.simulated.groups import driver_of, is_vfio
from vfioctl.units import UUID_FORM

Store = Callable[[Tree, str, str], None]
"""Handles a write to a file: the tree, the path of the file, the text."""
_MANAGED_DMA = ("pcieport", "pci-stub")
# Drivers whose name differs from their module's: struct pci_driver.name in the sources.
_DRIVER_OF_MODULE = {"vfio_pci": "vfio-pci", "xhci_pci": "xhci_hcd", "bochs": "bochs-drm", "pci_stub": "pci-stub"}


def write(tree: Tree, path: str, value: str) -> None:
    """One write to one file. Raises KernelRefused, or WouldBlock when it would wait for a holder of a device."""
    resolved = tree.resolve(path)
    if not value:
        return  # kernfs_fop_write_iter does not call the store function for an empty write
    try:
        store = _store_of(tree, resolved)
        if store is None:
            raise Refusal(errnos.EACCES if tree.exists(resolved) else errnos.ENOENT)
        store(tree, resolved, value)
    except Refusal as refusal:
        raise KernelRefused(path, refusal.errno, value) from None


def _store_of(tree: Tree, path: str) -> Store | None:
    known: dict[str, Store] = _ATTRIBUTES if tree.exists(path) else {}
    if posixpath.dirname(path) in tree.directories:
        known = known | _WRITE_ONLY
    return next((store for pattern, store in known.items() if re.fullmatch(pattern, path)), None)


def unbind_store(tree: Tree, path: str, value: str) -> None:
    driver, device = path.split("/")[-2], drivers.device_called(tree, value)
    if driver_of(tree, device) != driver:
        raise Refusal(errnos.ENODEV)
    drivers.device_driver_detach(tree, device)
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


def pci_write_rom(tree: Tree, path: str, value: str) -> None:
    """Switches the ROM off for two bytes of which the first is `0`, and on for anything else."""
    facts = tree.properties.get(f"sim:{path.split('/')[-2]}", {})
    if "rom" not in facts:
        raise Refusal(errnos.ENOENT)
    facts["rom_enabled"] = str(int(not (value.startswith("0") and len(value) == 2)))


_FUNCTION = rf"/sys/devices/.+/{PCI_ADDRESS.pattern}"
_PROFILE = rf"{_FUNCTION}/sriov_admin/(pf|vf[0-9]+)/profile"
_ATTRIBUTES: dict[str, Store] = {
    r"/sys/devices/.+/driver_override": drivers.driver_override_store,
    r"/sys/devices/.+/nvidia/placement_id": vendor.placement_id_store,
    r"/sys/devices/.+/nvidia/vgpu_params": vendor.vgpu_params_store,
    rf"{_FUNCTION}/d3cold_allowed": class_devices.d3cold_allowed_store,
    rf"{_FUNCTION}/nvidia/current_vgpu_type": vendor.current_vgpu_type_store,
    rf"{_FUNCTION}/power/control": class_devices.control_store,
    rf"{_FUNCTION}/reset(_subordinate)?": class_devices.reset_store,
    rf"{_FUNCTION}/reset_method": class_devices.reset_method_store,
    rf"{_FUNCTION}/sriov_drivers_autoprobe": vendor.sriov_drivers_autoprobe_store,
    rf"{_FUNCTION}/sriov_numvfs": virtual.sriov_numvfs_store,
    rf"{_PROFILE}/(exec_quantum_ms|preempt_timeout_us)": vendor.profile_number_store,
    rf"{_PROFILE}/sched_priority": vendor.sched_priority_store,
    r"(/sys/class/vtconsole|/sys/devices/virtual/vtconsole)/vtcon[0-9]+/bind": class_devices.store_bind,
    r"/sys/bus/platform/drivers/[^/]+/(un)?bind": class_devices.platform_driver_store,
    r"/proc/driver/nvidia/gpus/[0-9a-f:.]+/unbindLock": class_devices.nv_procfs_close_unbind_lock,
}
_WRITE_ONLY: dict[str, Store] = {
    r"/sys/bus/mdev/drivers/[^/]+/(un)?bind": mediated.driver_store,
    r"/sys/bus/pci/drivers/[^/]+/bind": drivers.bind_store,
    r"/sys/bus/pci/drivers/[^/]+/unbind": unbind_store,
    r"/sys/bus/pci/drivers_autoprobe": drivers.drivers_autoprobe_store,
    r"/sys/bus/pci/drivers_probe": drivers.drivers_probe_store,
    rf"/sys/devices/.+/{UUID_FORM}/remove": mediated.remove_store,
    rf"/sys/devices/.+/{capacity.TYPES}/[^/]+/create": mediated.create_store,
    rf"{_FUNCTION}/rom": pci_write_rom,
}
"""Files that need not be in a tree: a recording has only what can be read."""


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
