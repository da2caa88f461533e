"""Lists the directories and files about vGPUs that a snapshot of a host includes. Reads only.

It knows file names only; the vGPU probe interprets the files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, FileReader
from vfioctl.units import UUID

MDEV_PARENTS, MDEV_DEVICES = "/sys/class/mdev_bus", "/sys/bus/mdev/devices"
DEFINITIONS = "/etc/mdevctl.d"
"""mdevctl's definitions of mediated devices, in one directory for each parent."""
OWN_DEFINITIONS = "/etc/vfioctl/vgpu.d"
"""vfioctl's definitions of VFs, and of their vGPU types."""
CDI_ETC, CDI_RUN = "/etc/cdi", "/var/run/cdi"
"""Where container runtimes look for CDI files. What is in the second one is gone after a reboot."""

"""The name of a mediated device; the kernel writes it in lower case."""
_TYPE = frozenset({"available_instances", "description", "device_api", "name"})
_NVIDIA = frozenset(
    {
        "creatable_vgpu_types",
        "current_vgpu_type",
        "gpu_instance_id",
        "placement_id",
        "vgpu_params",
        "warm_update",
    }
)
SILENT = frozenset({"gpu_instance_id", "placement_id"})
"""Files that return ENXIO while no guest runs."""
_PROFILE = frozenset({"exec_quantum_ms", "preempt_timeout_us", "sched_priority", "vram_quota"})


class Place(NamedTuple):
    """A directory, its files to include, and the name prefixes of the links to include."""

    path: str
    files: Collection[str]
    links: tuple[str, ...]


def places(kernel: FileReader) -> Iterator[Place]:
    """Yields all directories about vGPUs, parents before children. Reads only what never blocks."""
    for classes in (MDEV_PARENTS, MDEV_DEVICES):
        if kernel.has(classes):
            yield Place(classes, (), ("",))
    for parent in _names(kernel, MDEV_PARENTS):
        yield from _mdev_parent(kernel, f"{MDEV_PARENTS}/{parent}")
    for address in _names(kernel, PCI_DEVICES):
        home = f"{PCI_DEVICES}/{address}"
        if kernel.has(f"{home}/nvidia"):
            yield Place(f"{home}/nvidia", _NVIDIA, ())
        for scope in _names(kernel, f"{home}/sriov_admin") if kernel.has(f"{home}/sriov_admin") else ():
            yield Place(f"{home}/sriov_admin/{scope}", (), ("device",))
            yield Place(f"{home}/sriov_admin/{scope}/profile", _PROFILE, ())
    for parent in _names(kernel, DEFINITIONS):
        defined = frozenset(name for name in _names(kernel, f"{DEFINITIONS}/{parent}") if UUID.fullmatch(name))
        if defined:
            yield Place(f"{DEFINITIONS}/{parent}", defined, ())
    names = _names(kernel, OWN_DEFINITIONS)
    if own := frozenset(name for name in names if PCI_ADDRESS.fullmatch(name.removesuffix(".json"))):
        yield Place(OWN_DEFINITIONS, own, ())


def _mdev_parent(kernel: FileReader, home: str) -> Iterator[Place]:
    yield Place(home, ("numa_node",), ("driver", "physfn"))
    for kind in _names(kernel, f"{home}/mdev_supported_types"):
        yield Place(f"{home}/mdev_supported_types/{kind}", _TYPE, ())
    for name in _names(kernel, home):
        if UUID.fullmatch(name):
            yield Place(f"{home}/{name}", (), ("driver", "iommu_group", "mdev_type", "subsystem"))
            # not vm_name: the guest's name is private
            yield Place(f"{home}/{name}/nvidia", _NVIDIA, ())


def _names(kernel: FileReader, path: str) -> list[str]:
    try:
        return kernel.children(path)
    except KernelRefused:
        return []
