"""VFIO on a simulated host: groups, device nodes, and who has them open. Changes only the tree. Sources:
drivers/vfio/group.c, drivers/vfio/vfio_main.c, drivers/vfio/device_cdev.c, drivers/iommu/iommu.c."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator

from vfioctl.kernel.protocol import IOMMU_GROUPS, PCI_DEVICES
from vfioctl.kernel.recorded.tree import Node, Tree
from vfioctl.kernel.simulated import class_devices

VFIO_MAJOR, VFIO_CDEV_MAJOR = 243, 511
CONTAINER, CDEVS = "/dev/vfio/vfio", "/dev/vfio/devices"
_CLASS = "/sys/class/vfio-dev"


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


def link(tree: Tree, path: str, target: str) -> None:
    """Adds a link to an absolute path, stored as a relative one as in sysfs."""
    tree.put_link(path, posixpath.relpath(target, posixpath.dirname(path)))


def iommu_group_alloc(tree: Tree, device: str, *, kind: str, name: str = "") -> None:
    """Creates a group for the device, with the lowest free number (ida_alloc)."""
    taken = tree.directories.get(IOMMU_GROUPS, set())
    home = f"{IOMMU_GROUPS}/{next(n for n in range(len(taken) + 1) if str(n) not in taken)}"
    tree.put(f"{home}/type", kind)
    if name:
        tree.put(f"{home}/name", name)
    link(tree, f"{home}/devices/{posixpath.basename(device)}", device)
    link(tree, f"{device}/iommu_group", home)


def iommu_group_remove_device(tree: Tree, device: str) -> None:
    """Removes the device from its group; the group is removed with its last member."""
    group = group_of(tree, device)
    tree.remove(f"{device}/iommu_group")
    tree.remove(f"{IOMMU_GROUPS}/{group}/devices/{posixpath.basename(device)}")
    if group and not tree.directories.get(f"{IOMMU_GROUPS}/{group}/devices"):
        tree.remove(f"{IOMMU_GROUPS}/{group}")


def vfio_group_create(tree: Tree, group: str | None) -> None:
    if f"/dev/vfio/{group}" not in tree.nodes:
        taken = {node.minor for node in tree.nodes.values() if node.major == VFIO_MAJOR}
        minor = next(n for n in range(len(taken) + 1) if n not in taken)
        tree.put_node(f"/dev/vfio/{group}", Node("c", VFIO_MAJOR, minor))


def vfio_group_release(tree: Tree, group: str | None) -> None:
    """Removes the group's node with its last member that is a VFIO device."""
    if not any(is_vfio_device(tree, member) for member in members_of(tree, group)):
        tree.remove(f"/dev/vfio/{group}")


def is_vfio_device(tree: Tree, device: str) -> bool:
    return is_vfio(driver_of(tree, device) or "") or f"{device}/vfio-dev" in tree.directories


def vfio_device_add(tree: Tree, device: str) -> None:
    """Adds the device's vfio-dev, and its node where the kernel has such nodes (CONFIG_VFIO_DEVICE_CDEV)."""
    taken = {name for path, names in tree.directories.items() if path.endswith("/vfio-dev") for name in names}
    number = next(n for n in range(len(taken) + 1) if f"vfio{n}" not in taken)
    home = f"{device}/vfio-dev/vfio{number}"
    tree.put_directory(home)
    if CDEVS in tree.directories:
        link(tree, f"{home}/subsystem", _CLASS)
        link(tree, f"{_CLASS}/vfio{number}", home)
        tree.put(f"{home}/dev", f"{VFIO_CDEV_MAJOR}:{number}")
        tree.put_node(f"{CDEVS}/vfio{number}", Node("c", VFIO_CDEV_MAJOR, number))


def vfio_device_del(tree: Tree, device: str) -> None:
    for name in tuple(tree.directories.get(f"{device}/vfio-dev", ())):
        tree.remove(f"{_CLASS}/{name}")
        tree.remove(f"{CDEVS}/{name}")
    tree.remove(f"{device}/vfio-dev")


def opened(tree: Tree, device: str) -> bool:
    """Whether a process has the device open, through its group's node or its own."""
    nodes = [f"{CDEVS}/{name}" for name in tree.directories.get(f"{device}/vfio-dev", ())]
    if group := group_of(tree, device):
        nodes.append(f"/dev/vfio/{group}")
    return any(class_devices.open_by(tree, node) for node in nodes)
