"""Mediated devices of a simulated host: created, removed, removed with their parent's driver. Changes only the tree.
Each rule is named after the kernel function it mirrors. Sources: drivers/vfio/mdev/mdev_core.c, mdev_sysfs.c and
mdev_driver.c of Linux 6.1; which write waits for whom was observed on a real kernel in the lab."""

from __future__ import annotations

import errno as errnos
import posixpath

from vfioctl.kernel.host_paths import MDEV_PARENTS
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.kernel.simulated import groups
from vfioctl.kernel.simulated.capacity import TYPES, UUID, Account, card_of, facts_of, recount
from vfioctl.kernel.simulated.faults import Refusal, WouldBlock, kstrtoul

BUS = "/sys/bus/mdev"
_UUID_LENGTH = 36


def create_store(tree: Tree, path: str, value: str) -> None:
    """Accepts a UUID and at most one more character, which is ignored (guid_parse)."""
    name = value[:_UUID_LENGTH].lower()
    if len(value) not in (_UUID_LENGTH, _UUID_LENGTH + 1) or not UUID.fullmatch(name):
        raise Refusal(errnos.EINVAL)
    home = path.rpartition("/")[0]
    parent, kind = home.rsplit("/", 2)[0], posixpath.basename(home)
    if any(posixpath.basename(directory) == name for directory in tree.directories):
        raise Refusal(errnos.EEXIST)
    if not _is_registered(tree, parent):
        raise Refusal(errnos.ENODEV)
    account = Account(tree, card_of(tree, parent))
    if not account.available(parent, kind):
        raise Refusal(account.refusal(kind))
    mdev_device_create(tree, f"{parent}/{name}", home)


def mdev_device_create(tree: Tree, device: str, kind: str) -> None:
    """When the write returns, the device, its driver, its group and the group's node (devtmpfs) exist."""
    name, parent = posixpath.basename(device), posixpath.dirname(device)
    driver = groups.driver_of(tree, parent) or posixpath.basename(parent)
    groups.link(tree, f"{device}/mdev_type", kind)
    groups.link(tree, f"{device}/subsystem", BUS)
    groups.link(tree, f"{device}/driver", f"{BUS}/drivers/{driver}")
    for home in (f"{BUS}/drivers/{driver}", f"{BUS}/devices", f"{kind}/devices"):
        groups.link(tree, f"{home}/{name}", device)
    tree.put_refused(f"{device}/remove", errnos.EACCES)  # write-only
    groups.iommu_group_alloc(tree, device, kind="unknown", name="vfio-noiommu")
    groups.vfio_device_add(tree, device)
    groups.vfio_group_create(tree, groups.group_of(tree, device))
    if posixpath.basename(kind).startswith("nvidia-"):
        tree.put(f"{device}/nvidia/vgpu_params", "")
        tree.put(f"{device}/nvidia/vm_name", "")
    recount(tree, card_of(tree, parent))


def remove_store(tree: Tree, path: str, value: str) -> None:
    device = path.rpartition("/")[0]
    if f"{device}/mdev_type" not in tree.links and not _is_removed(tree, device):
        raise Refusal(errnos.ENOENT)
    if kstrtoul(value):
        mdev_device_remove(tree, device)


def mdev_device_remove(tree: Tree, device: str) -> None:
    """Hides the device at once, waits for its holders, then frees its share. Raises WouldBlock."""
    parent = posixpath.dirname(device)
    if not _is_removed(tree, device):
        hide(tree, device)
        if groups.opened(tree, device):
            raise WouldBlock(device)
    _unregister(tree, device)
    tree.remove(device)
    del tree.properties[f"sim:{posixpath.basename(device)}"]["removed"]
    recount(tree, card_of(tree, parent))


def _is_removed(tree: Tree, device: str) -> bool:
    return "removed" in tree.properties.get(f"sim:{posixpath.basename(device)}", {})


def hide(tree: Tree, device: str) -> None:
    """mdev_remove_sysfs_files, and device_del up to the driver's remove function."""
    Account(tree, card_of(tree, posixpath.dirname(device)))  # records the stock while the files still show it
    name, kind = posixpath.basename(device), tree.resolve(f"{device}/mdev_type")
    is_orphan = groups.driver_of(tree, device) is None
    facts_of(tree, device)["removed"] = "" if is_orphan else posixpath.basename(kind)
    tree.remove(f"{kind}/devices/{name}")
    tree.remove(f"{BUS}/devices/{name}")
    tree.remove(f"{BUS}/drivers/{groups.driver_of(tree, device)}/{name}")
    for gone in ("mdev_type", "remove", "subsystem", "driver", "nvidia"):
        tree.remove(f"{device}/{gone}")


def _unregister(tree: Tree, device: str) -> None:
    """vfio_unregister_group_dev: removes the node and the group."""
    group = groups.group_of(tree, device)
    groups.vfio_device_del(tree, device)
    groups.iommu_group_remove_device(tree, device)
    if group:
        tree.remove(f"/dev/vfio/{group}")


def driver_store(tree: Tree, path: str, value: str) -> None:
    """Unbinding frees the share of a device; no driver binds it again."""
    home, _, verb = path.rpartition("/")
    name = value.removesuffix("\n")
    if verb == "bind" or f"{home}/{name}" not in tree.links:
        raise Refusal(errnos.ENODEV)
    device = tree.resolve(f"{home}/{name}")
    card = card_of(tree, posixpath.dirname(device))
    Account(tree, card)
    if groups.opened(tree, device):
        raise Refusal(errnos.EBUSY)  # the real kernel waits here; vfioctl never unbinds a mediated device in use
    for gone in (f"{home}/{name}", f"{device}/driver", f"{device}/nvidia"):
        tree.remove(gone)
    _unregister(tree, device)
    recount(tree, card)


def mdev_unregister_parent(tree: Tree, parent: str) -> None:
    """Hides the parent first, then removes its devices one by one; each removal may wait."""
    if f"{parent}/{TYPES}" not in tree.directories:
        return
    if _is_registered(tree, parent):
        tree.remove(f"{MDEV_PARENTS}/{posixpath.basename(parent)}")
    for name in sorted(tree.directories[parent]):
        if UUID.fullmatch(name):
            mdev_device_remove(tree, f"{parent}/{name}")


def _is_registered(tree: Tree, parent: str) -> bool:
    link = f"{MDEV_PARENTS}/{posixpath.basename(parent)}"
    return link in tree.links and tree.resolve(link) == parent
