"""Finds the devices below a function, the numbers of its device files, and which of them the kernel itself uses.
May not write, nor import a model, because workers run it. Sources: linux/vfio.h; nvidia.ko's nv-procfs.c, nv-caps.c and
procfs_nvswitch.c (open-gpu-kernel-modules)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import devices_below, link_name, names_in, number_of, text_of
from vfioctl.kernel.protocol import PCI_DEVICES, Descendant, FileReader, Processes, Reader, per_subject

if TYPE_CHECKING:
    from vfioctl.inventory.model.functions import Function

_NVIDIA = 195  # NV_MAJOR_DEVICE_NUMBER
_SWITCHES = 64  # as many as the driver numbers; it does not say which switch has which number
_MINOR = re.compile(r"^Device(?: |File)Minor:\s*([0-9]{1,7})", re.M)
_SUBSYSTEMS = "/sys/class/nvme-subsystem"
VTCONSOLES = "/sys/class/vtconsole"
_NOTHING_THERE = ("ENXIO", "ENOMEDIUM")


def read_below(kernel: Reader, function: Function) -> Sequence[Descendant]:
    """Return the devices below a function, including NVMe multipath disks; none if the function is gone."""
    below = devices_below(kernel, f"{PCI_DEVICES}/{function.address}")
    controllers = {device.path.rpartition("/")[2] for device in below if device.subsystem == "nvme"}
    return [*below, *(device for controller in controllers for device in _multipath(kernel, controller))]


def _multipath(kernel: Reader, controller: str) -> Iterator[Descendant]:
    """Yield the disks of an NVMe subsystem, which are not below its controllers (nvme_mpath_alloc_disk)."""
    for name in names_in(kernel, _SUBSYSTEMS):
        if controller in names_in(kernel, f"{_SUBSYSTEMS}/{name}"):
            yield from devices_below(kernel, f"{_SUBSYSTEMS}/{name}")


class Named(NamedTuple):
    """The facts of a function that identify its device files. Plain data."""

    address: str
    driver: str | None
    vfio_group: str | None
    vfio_cdev: str | None


class NumbersReader:
    """Reads the device numbers of functions in a worker. `known`: what `plain` returns, by address."""

    def __init__(self, kernel: Reader, known: Mapping[str, tuple[Any, ...]]) -> None:
        self._kernel, self._known = kernel, known

    def __call__(self, address: str) -> list[str]:
        named, below = self._known[address]
        return [*device_numbers(self._kernel, Named(*named), [Descendant(*descendant) for descendant in below])]


def plain(function: Function, below: Sequence[Descendant]) -> tuple[Any, ...]:
    """Return the arguments of `NumbersReader` as plain data."""
    named = (str(function.address), function.driver, function.vfio_group, function.vfio_cdev)
    return named, [tuple(descendant) for descendant in below]


def device_numbers(kernel: Reader, function: Named, below: Sequence[Descendant]) -> frozenset[str]:
    """Return the numbers of all device files of a function, as `c 195:0` and `b 259:1`."""
    more = (*_vfio(kernel, function, below), *_nvidia(kernel, function), *_switches(kernel, function))
    return own_numbers(below).union(more)


def own_numbers(below: Sequence[Descendant]) -> frozenset[str]:
    """Return the numbers of the devices below, which sysfs shows without asking a driver."""
    kinds = (("b" if device.subsystem == "block" else "c", device.number) for device in below)
    return frozenset(f"{kind} {number}" for kind, number in kinds if number)


def _vfio(kernel: Reader, function: Named, below: Sequence[Descendant]) -> Iterator[str]:
    # an mdev has an IOMMU group of its own
    mdevs = [link_name(kernel, f"{device.path}/iommu_group") for device in below if device.subsystem == "mdev"]
    for path in (function.vfio_group, function.vfio_cdev, *(f"/dev/vfio/{group}" for group in mdevs if group)):
        if path and (number := number_of(kernel, path)):
            yield number


def _nvidia(kernel: Reader, function: Named) -> Iterator[str]:
    """Yield /dev/nvidiaN and the capabilities of the GPU's MIG instances, but not files that all GPUs share."""
    minor = _minor(kernel, f"/proc/driver/nvidia/gpus/{function.address}/information")
    if minor is None:
        return
    yield f"c {_NVIDIA}:{minor}"
    if (caps := _major(kernel, "nvidia-caps")) is not None:
        instances = (
            _minor(kernel, path) for path in _mig_access(kernel, f"/proc/driver/nvidia/capabilities/gpu{minor}/mig")
        )
        yield from (f"c {caps}:{number}" for number in instances if number is not None)


def _mig_access(kernel: Reader, path: str, depth: int = 3) -> Iterator[str]:
    """Yield the files `access` below: gi1/access, gi1/ci0/access, ..."""
    for name in names_in(kernel, path) if depth else ():
        if name == "access":
            yield f"{path}/access"
        else:
            yield from _mig_access(kernel, f"{path}/{name}", depth - 1)


def _switches(kernel: Reader, function: Named) -> Iterator[str]:
    """Yield the numbers of all NVSwitches: the fabric manager opens all, and no file shows which is which."""
    major = _major(kernel, "nvidia-nvswitch") if function.driver == "nvidia-nvswitch" else None
    if major is not None:
        yield from (f"c {major}:{minor}" for minor in range(_SWITCHES))


def _major(kernel: Reader, name: str) -> int | None:
    match = re.search(rf"^ *([0-9]{{1,4}}) {re.escape(name)}$", text_of(kernel, "/proc/devices"), re.M)
    return int(match[1]) if match else None


def _minor(kernel: Reader, path: str) -> int | None:
    match = _MINOR.search(text_of(kernel, path))
    return int(match[1]) if match else None


@per_subject
def is_drawn(kernel: FileReader, console: str) -> bool:
    """Return whether a vtconsole is on framebuffers. Takes the console lock (show_bind, drivers/tty/vt/vt.c)."""
    home = f"{VTCONSOLES}/{console}"
    return "frame buffer" in text_of(kernel, f"{home}/name") and text_of(kernel, f"{home}/bind") == "1"


@per_subject
def why_claimed(kernel: Processes, number: str) -> str:
    """Return why a block device is in use; empty if it is free. An unknown state counts as in use."""
    try:
        return "in use by the kernel: ZFS, another mount namespace, ..." if kernel.claimed(number) else ""
    except KernelRefused as error:
        unknown = f"possibly in use: the kernel does not report it ({error.symbol})"
        return "" if error.symbol in _NOTHING_THERE else unknown
