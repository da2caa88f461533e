"""What Linux does on a write, as changes of a tree. Each rule is named after the kernel function it mirrors.

Sources: drivers/base/bus.c, drivers/base/dd.c, drivers/base/driver.c, drivers/pci/pci-driver.c,
drivers/vfio/group.c, drivers/iommu/iommu.c of Linux 6.1, and what the contract suite saw of a real one.
"""

from __future__ import annotations

import errno as errnos
import posixpath
import re
from collections.abc import Iterator

from vfioctl.errors import HostError, KernelRefused
from vfioctl.kernel.seam import IOMMU_GROUPS, PCI_ADDRESS, PCI_DEVICES, PCI_DRIVERS
from vfioctl.kernel.simulated import surroundings
from vfioctl.kernel.simulated.refusal import Refusal
from vfioctl.kernel.tree import Node, Tree
from vfioctl.modalias import NATIVE, VFIO, Aliases

PAGE_SIZE = 4096
VFIO_MAJOR = 243
_MANAGED_DMA = ("pcieport", "pci-stub")
# Where a driver is not called as its module is: struct pci_driver.name in the sources.
_DRIVER_OF_MODULE = {"vfio_pci": "vfio-pci", "xhci_pci": "xhci_hcd", "bochs": "bochs-drm", "pci_stub": "pci-stub"}


def write(tree: Tree, path: str, value: str) -> None:
    """One write to one file. Raises KernelRefused."""
    there = tree.resolve(path)
    parent, _, name = there.rpartition("/")
    try:
        if not value:
            return  # kernfs_fop_write_iter: no bytes, no call of the attribute's store function
        if name == "driver_override" and there in tree.files:
            driver_override_store(tree, parent, value)
        elif tree.exists(there) and (store := surroundings.store_of(there)):
            store(tree, there, value)
        elif parent == "/sys/bus/pci" and name == "drivers_probe":
            drivers_probe_store(tree, value)
        elif parent == "/sys/bus/pci" and name == "drivers_autoprobe":
            tree.put(there, "0" if value.startswith("0") else "1")
        elif parent.startswith(f"{PCI_DRIVERS}/") and parent in tree.directories and name in ("bind", "unbind"):
            {"bind": bind_store, "unbind": unbind_store}[name](tree, posixpath.basename(parent), value)
        else:
            raise Refusal(errnos.EACCES if tree.exists(there) else errnos.ENOENT)
    except Refusal as refusal:
        raise KernelRefused(path, refusal.errno, value) from None


def driver_set_override(tree: Tree, device: str, name: str) -> None:
    tree.put(f"{device}/driver_override", name or "(null)")


def driver_override_store(tree: Tree, device: str, value: str) -> None:
    if len(value) >= PAGE_SIZE - 1:
        raise Refusal(errnos.EINVAL)
    # strlen() of what came, then up to the newline: NUL bytes or a lone newline clear it.
    driver_set_override(tree, device, value.split("\0", 1)[0].split("\n", 1)[0])


def unbind_store(tree: Tree, driver: str, value: str) -> None:
    device = _device(tree, value)
    if driver_of(tree, device) != driver:
        raise Refusal(errnos.ENODEV)
    device_driver_detach(tree, device)


def bind_store(tree: Tree, driver: str, value: str) -> None:
    device = _device(tree, value)
    if not pci_match_device(tree, device, driver):
        raise Refusal(errnos.ENODEV)
    if driver_of(tree, device):
        raise Refusal(errnos.EBUSY)
    really_probe(tree, device, driver)


def drivers_probe_store(tree: Tree, value: str) -> None:
    device = _device(tree, value)
    if driver_of(tree, device) is None:
        device_attach(tree, device)


def device_attach(tree: Tree, device: str) -> None:
    """The first registered driver that matches; success too when none does."""
    for driver in sorted(tree.directories.get(PCI_DRIVERS, ())):
        if pci_match_device(tree, device, driver):
            try:
                really_probe(tree, device, driver)
            except Refusal:
                raise Refusal(errnos.EINVAL) from None  # bus_rescan_devices_helper's caller hides the reason
            return


def pci_match_device(tree: Tree, device: str, driver: str) -> bool:
    """With an override only the driver that it names; otherwise the drivers whose ids fit."""
    override = tree.files.get(f"{device}/driver_override", "(null)")
    if override != "(null)":
        return override == driver
    if tree.properties.get(f"sim:{posixpath.basename(device)}", {}).get("native") == driver:
        return True
    return driver in _native_drivers(tree, device)


def really_probe(tree: Tree, device: str, driver: str) -> None:
    if is_vfio(driver):
        vfio_pci_core_register_device(tree, device)
    address = posixpath.basename(device)
    home = f"{PCI_DRIVERS}/{driver}"
    tree.put_link(f"{device}/driver", posixpath.relpath(home, device))
    tree.put_link(f"{home}/{address}", posixpath.relpath(device, home))
    if is_vfio(driver):
        vfio_group_create(tree, group_of(tree, device))
        surroundings.vfio_pci_core_runtime_pm(tree, device, registered=True)
    else:
        surroundings.class_devices_back(tree, device)


def device_driver_detach(tree: Tree, device: str) -> None:
    driver, group = driver_of(tree, device), group_of(tree, device)
    tree.remove(f"{device}/driver")
    tree.remove(f"{PCI_DRIVERS}/{driver}/{posixpath.basename(device)}")
    if driver and is_vfio(driver):
        tree.remove(f"{device}/vfio-dev")
        vfio_group_release(tree, group)
        surroundings.vfio_pci_core_runtime_pm(tree, device, registered=False)
    else:
        surroundings.class_devices_gone(tree, device)


def vfio_pci_core_register_device(tree: Tree, device: str) -> None:
    if group_of(tree, device) is None:
        raise Refusal(errnos.EINVAL)
    if any(name.startswith("virtfn") for name in tree.directories[device]):
        raise Refusal(errnos.EBUSY)  # "Cannot bind to PF with SR-IOV enabled"
    taken = {name for d in _devices(tree) for name in tree.directories.get(f"{d}/vfio-dev", ())}
    number = next(n for n in range(len(taken) + 1) if f"vfio{n}" not in taken)
    tree.put_directory(f"{device}/vfio-dev/vfio{number}")


def vfio_group_create(tree: Tree, group: str | None) -> None:
    if f"/dev/vfio/{group}" not in tree.nodes:
        taken = {node.minor for node in tree.nodes.values() if node.major == VFIO_MAJOR}
        minor = next(n for n in range(len(taken) + 1) if n not in taken)
        tree.put_node(f"/dev/vfio/{group}", Node("c", VFIO_MAJOR, minor))


def vfio_group_release(tree: Tree, group: str | None) -> None:
    """The group's node goes with its last member on a VFIO driver."""
    if not any(is_vfio(driver_of(tree, member) or "") for member in members_of(tree, group)):
        tree.remove(f"/dev/vfio/{group}")


def vfio_group_ioctl_get_status(tree: Tree, group: int) -> bool:
    """iommu_group_dma_owner_claimed's question: is every member unbound, or on a driver that leaves DMA alone?"""
    if f"/dev/vfio/{group}" not in tree.nodes:
        raise KernelRefused(f"/dev/vfio/{group}", errnos.ENOENT)
    if surroundings.open_by(tree, f"/dev/vfio/{group}"):
        raise KernelRefused(f"/dev/vfio/{group}", errnos.EBUSY)  # vfio_group_fops_open: one opener at a time
    drivers = [driver_of(tree, member) for member in members_of(tree, str(group))]
    return all(driver is None or is_vfio(driver) or driver in _MANAGED_DMA for driver in drivers)


def load_module(tree: Tree, module: str) -> None:
    """request_module, and driver_attach for the devices that wait. Raises HostError."""
    module = module.replace("-", "_")
    if f"/sys/module/{module}" in tree.directories:
        return
    if module not in _known_modules(tree):
        error = HostError(f"module {module} could not be loaded", hint="install the package that has it")
        error.kernel_said = f"modprobe: FATAL: Module {module} not found"
        raise error
    driver = _DRIVER_OF_MODULE.get(module, module)
    tree.put_directory(f"/sys/module/{module}")
    tree.put_link(f"/sys/module/{module}/drivers/pci:{driver}", f"../../../bus/pci/drivers/{driver}")
    tree.put_directory(f"{PCI_DRIVERS}/{driver}")
    tree.put_link(f"{PCI_DRIVERS}/{driver}/module", f"../../../../module/{module}")
    if is_vfio(driver):
        tree.put_node("/dev/vfio/vfio", Node("c", 10, 196))
    if tree.files.get("/sys/bus/pci/drivers_autoprobe", "1") == "1":
        driver_attach(tree, driver)


def driver_attach(tree: Tree, driver: str) -> None:
    for device in tuple(_devices(tree)):
        if driver_of(tree, device) is None and pci_match_device(tree, device, driver):
            try:
                really_probe(tree, device, driver)
            except Refusal:
                continue  # __driver_attach goes on with the next device


# -- looking around --------------------------------------------------------------------------------


def is_vfio(driver: str) -> bool:
    return driver.replace("_", "-").endswith("vfio-pci")


def driver_of(tree: Tree, device: str) -> str | None:
    target = tree.links.get(f"{device}/driver")
    return posixpath.basename(target) if target else None


def group_of(tree: Tree, device: str) -> str | None:
    target = tree.links.get(f"{device}/iommu_group")
    return posixpath.basename(target) if target else None


def members_of(tree: Tree, group: str | None) -> Iterator[str]:
    for address in tree.directories.get(f"{IOMMU_GROUPS}/{group}/devices", ()):
        yield tree.resolve(f"{PCI_DEVICES}/{address}")


def _devices(tree: Tree) -> Iterator[str]:
    for address in sorted(tree.directories.get(PCI_DEVICES, ())):
        yield tree.resolve(f"{PCI_DEVICES}/{address}")


def _device(tree: Tree, value: str) -> str:
    address = value.removesuffix("\n")
    if not PCI_ADDRESS.fullmatch(address) or address not in tree.directories.get(PCI_DEVICES, ()):
        raise Refusal(errnos.ENODEV)
    return tree.resolve(f"{PCI_DEVICES}/{address}")


def _native_drivers(tree: Tree, device: str) -> set[str]:
    modalias = tree.files.get(f"{device}/modalias", "")
    modules = Aliases(_modules_alias(tree)).modules(modalias, NATIVE)
    return {driver for module in modules for driver in _drivers_of_module(tree, module)}


def _drivers_of_module(tree: Tree, module: str) -> set[str]:
    names = tree.directories.get(f"/sys/module/{module}/drivers", ())
    return {name.removeprefix("pci:") for name in names}


def _known_modules(tree: Tree) -> set[str]:
    release = tree.files.get("/proc/sys/kernel/osrelease", "")
    listed = re.findall(r"([^/\s]+)\.ko", tree.files.get(f"/lib/modules/{release}/modules.dep", ""))
    aliased = re.findall(rf"^alias (?:{NATIVE}|{VFIO}):\S+ (\S+)$", _modules_alias(tree), re.M)
    return {name.replace("-", "_") for name in (*listed, *aliased)}


def _modules_alias(tree: Tree) -> str:
    release = tree.files.get("/proc/sys/kernel/osrelease", "")
    return tree.files.get(f"/lib/modules/{release}/modules.alias", "")


def remember_natives(tree: Tree) -> None:
    """Notes which driver each device was recorded with, for drivers whose ids no file tells (built in)."""
    for device in tuple(_devices(tree)):
        driver, subject = driver_of(tree, device), f"sim:{posixpath.basename(device)}"
        if not driver or is_vfio(driver) or subject in tree.properties:
            continue
        if driver not in _native_drivers(tree, device):
            tree.properties[subject] = {"native": driver}
