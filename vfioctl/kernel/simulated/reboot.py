"""A reboot of a simulated host: what it leaves, and what it undoes. Changes only trees."""

from __future__ import annotations

from vfioctl.kernel.recorded.tree import ROOTS, Tree

KEPT_ROOTS = tuple(root for root in ROOTS if root.startswith("/etc/"))
"""Directories on the disk. Everything else is the kernel's, and begins anew."""
BOOT_ID = "/proc/sys/kernel/random/boot_id"


def rebooted(tree: Tree, at_boot: Tree, *, boot_id: str) -> Tree:
    """Return the host after a reboot: its state at boot, with the files on the disk as they are now."""
    for root in KEPT_ROOTS:
        at_boot.remove(root.rstrip("/"))
    for path in sorted(path for path in tree.directories if f"{path}/".startswith(KEPT_ROOTS)):
        at_boot.put_directory(path)
    for path, text in tree.files.items():
        if path.startswith(KEPT_ROOTS):
            at_boot.put(path, text)
    for path, target in tree.links.items():
        if path.startswith(KEPT_ROOTS):
            at_boot.put_link(path, target)
    at_boot.put(BOOT_ID, boot_id)
    return at_boot
