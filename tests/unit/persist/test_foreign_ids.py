"""Ids that vfio-pci is given at boot, as `persist list` has them."""

from __future__ import annotations

from vfioctl.kernel.recorded.host import Recorded
from vfioctl.kernel.recorded.tree import Tree
from vfioctl.persist.model.persistent import Owner
from vfioctl.persist.probe.foreign import given_ids


def test_ids_are_read_wherever_modprobe_looks() -> None:
    tree = Tree()
    tree.put("/proc/cmdline", "quiet vfio-pci.ids=1:2")
    tree.put("/usr/lib/modprobe.d/vfio.conf", "options vfio-pci ids=3:4")
    tree.put("/run/modprobe.d/gpu.conf", 'options vfio-pci ids="5:6,7:8"')
    tree.put("/run/modprobe.d/vfio.conf", "options vfio-pci ids=9:9")
    tree.put("/etc/modprobe.d/vfio.conf", "# nothing any more")
    assert list(given_ids(Recorded(tree, "a host"))) == [
        (Owner.COMMAND_LINE, "/proc/cmdline", "1:2"),
        (Owner.MODPROBE, "/run/modprobe.d/gpu.conf", "5:6,7:8"),
    ]
