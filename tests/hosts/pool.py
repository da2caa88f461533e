"""Adds a parent of mediated devices that is no PCI function to a tree, like samples/vfio-mdev/mbochs.c.

Does no input or output.
"""

from __future__ import annotations

from vfioctl.kernel.recorded.tree import Tree

PARENT = "mbochs"
SIZES = {"mbochs-small": 4, "mbochs-medium": 16, "mbochs-large": 64}
"""What each type takes of the pool, in MB."""


def add_pool(tree: Tree, megabytes: int) -> None:
    """The parent with three types that share this many MB; it has no vGPUs yet."""
    home = f"/sys/devices/virtual/{PARENT}/{PARENT}"
    tree.put_link(f"/sys/class/mdev_bus/{PARENT}", f"../../devices/virtual/{PARENT}/{PARENT}")
    tree.put_directory("/sys/bus/mdev/devices")
    tree.put_directory(f"/sys/bus/mdev/drivers/{PARENT}")
    for kind, size in SIZES.items():
        folder = f"{home}/mdev_supported_types/{kind}"
        tree.put(f"{folder}/available_instances", str(megabytes // size))
        tree.put(f"{folder}/description", f"virtual display, {size} MB video memory")
        tree.put(f"{folder}/device_api", "vfio-pci")
        tree.put(f"{folder}/name", kind)
        tree.put_directory(f"{folder}/devices")
