"""Holds a function or a mediated device open through vfio until it is killed, as a VM would that answers no request.

`python holder.py ADDRESS_OR_UUID` prints "ready" when it holds. Standard library only: it is started as a bare script.
"""

import array
import fcntl
import os
import signal
import sys
from pathlib import Path

# linux/vfio.h
VFIO_GROUP_GET_STATUS = 0x3B67
VFIO_GROUP_SET_CONTAINER = 0x3B68
VFIO_SET_IOMMU = 0x3B66
VFIO_GROUP_GET_DEVICE_FD = 0x3B6A
VFIO_TYPE1_IOMMU = 1
VFIO_GROUP_FLAGS_VIABLE = 1


def group_is_viable(group: str) -> bool:
    """What the kernel answers about an IOMMU group, by number; raises OSError when no one may open it."""
    descriptor = os.open(f"/dev/vfio/{group}", os.O_RDWR)
    try:
        # struct vfio_group_status: argsz, flags
        status = array.array("I", [8, 0])
        fcntl.ioctl(descriptor, VFIO_GROUP_GET_STATUS, status)
    finally:
        os.close(descriptor)
    return bool(status[1] & VFIO_GROUP_FLAGS_VIABLE)


def hold(name: str) -> tuple[int, int, int]:
    """Opens the function, by address, or mediated device, by UUID; the descriptors of container, group and device."""
    (link,) = Path("/sys/bus").glob(f"*/devices/{name}/iommu_group")
    group_number = link.readlink().name
    container = os.open("/dev/vfio/vfio", os.O_RDWR)
    group = os.open(f"/dev/vfio/{group_number}", os.O_RDWR)
    fcntl.ioctl(group, VFIO_GROUP_SET_CONTAINER, array.array("i", [container]))
    fcntl.ioctl(container, VFIO_SET_IOMMU, VFIO_TYPE1_IOMMU)
    # a mutable argument, or the call returns it and not the descriptor
    device = fcntl.ioctl(group, VFIO_GROUP_GET_DEVICE_FD, bytearray(name.encode() + b"\0"))
    return container, group, device


if __name__ == "__main__":
    held = hold(sys.argv[1])
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    signal.pause()
