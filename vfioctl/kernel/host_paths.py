"""Lists the directories and files that a snapshot of a host includes. Reads only; the probes interpret the files."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import link_name, names_in
from vfioctl.kernel.protocol import (
    EVERY_LINK,
    IOMMU_GROUPS,
    PCI_ADDRESS,
    PCI_DEVICES,
    PCI_DRIVERS,
    FileReader,
    Prefixes,
)
from vfioctl.units import UUID_FORM

MDEV_PARENTS, MDEV_DEVICES = "/sys/class/mdev_bus", "/sys/bus/mdev/devices"
DEFINITIONS = "/etc/mdevctl.d"
"""mdevctl's definitions of mediated devices, in one directory for each parent."""
OWN_DEFINITIONS = "/etc/vfioctl/vgpu.d"
"""vfioctl's definitions of VFs, and of their vGPU types."""
DEVICES = "/etc/vfioctl/devices.d"
"""vfioctl's definitions of devices that are bound to VFIO at each boot."""
UDEV_RULES = "/etc/udev/rules.d"
DEVICE_RULE = "61-vfioctl-{}.rules"
"""The name of the udev rule of one such device, by its address. It precedes 62-vfioctl-boot.rules."""
UNITS, PROGRAMS = "/etc/systemd/system", "/usr/lib/vfioctl"
"""Where `vfioctl install` puts what a boot runs."""
PACKAGED_UNITS, PACKAGED_RULES = "/usr/lib/systemd/system", "/usr/lib/udev/rules.d"
"""Where packages of the system put units and udev rules."""
INITRAMFS_TOOLS, PACKAGED_INITRAMFS_TOOLS = "/etc/initramfs-tools", "/usr/share/initramfs-tools"
"""Where Debian's initramfs-tools looks for hooks and scripts: those of the host, and those of packages."""
DRACUT_MODULE = "/usr/lib/dracut/modules.d/90vfioctl"
"""dracut looks for its modules in one place only."""
UPDATE_INITRAMFS, DRACUT = "/usr/sbin/update-initramfs", "/usr/bin/dracut"
RENEWERS: Mapping[str, str] = {
    UPDATE_INITRAMFS: "update-initramfs -u -k all",
    DRACUT: "dracut --force --regenerate-all",
}
"""The programs that make the initramfs, and the command of each that renews all. Where both are, the first one is in
use: Debian's package of dracut has no initramfs-tools beside it."""
SHARE = "/usr/local/share"
"""Where `vfioctl install` puts manual pages and completions: man(1) and shells look there without any setting."""
CDI_ETC, CDI_RUN = "/etc/cdi", "/var/run/cdi"
"""Where container runtimes look for CDI files. What is in the second one is gone after a reboot."""
MPS_CONTROL = "/usr/bin/nvidia-cuda-mps-control"
"""The program that starts and controls NVIDIA's MPS, where the packages of the driver's programs put it."""
KATA_CONFIGURATIONS = (
    "/etc/kata-containers/configuration.toml",
    "/usr/share/defaults/kata-containers/configuration.toml",
    "/opt/kata/share/defaults/kata-containers/configuration.toml",
)
"""Where Kata Containers looks for its configuration; the first that exists counts."""
FIRMWARE_FRAMEBUFFERS = ("efi-framebuffer", "simple-framebuffer", "simpledrm", "vesa-framebuffer", "vga16fb")
"""Platform drivers of firmware framebuffers."""
ALLOWED_RUN = "/run/vfioctl/allowed"
"""What units could open before vfioctl restricted them: a file for each unit. Gone after a reboot, as its settings."""
ACCESS_RUN = "/run/vfioctl/access"
"""Who may open the device nodes of claims: a file for each node, which a udev rule imports. Gone after a reboot."""
MPS_RUN, MPS_LOG = "/run/vfioctl/mps", "/var/log/vfioctl/mps"
"""What vfioctl notes of each MPS daemon, with the daemon's pipes; and where the daemon logs. The first one is gone
after a reboot, as the compute modes are."""
_FUNCTION = frozenset(
    {
        "class", "device", "modalias", "revision", "subsystem_device", "subsystem_vendor", "vendor",
        "boot_vga", "d3cold_allowed", "driver_override", "enable", "power_state", "reset_method", "resource",
        "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
        "local_cpulist", "local_cpus", "numa_node",
        "sriov_drivers_autoprobe", "sriov_numvfs", "sriov_offset", "sriov_stride", "sriov_totalvfs", "sriov_vf_device",
    }
)  # fmt: skip
_TYPE = frozenset({"available_instances", "description", "device_api", "name"})
_NVIDIA = frozenset(
    {"creatable_vgpu_types", "current_vgpu_type", "gpu_instance_id", "placement_id", "vgpu_params", "warm_update"}
)
SILENT = frozenset({"gpu_instance_id", "placement_id"})
"""Files that return ENXIO while no guest runs."""
_PROFILE = frozenset({"exec_quantum_ms", "preempt_timeout_us", "sched_priority", "vram_quota"})


class Place(NamedTuple):
    """A directory, its files to include, and the name prefixes of the links to include. In the path and in the names of
    files, `<name>`, `<number>`, `<uuid>` and `<address>` stand for all of that form."""

    path: str
    files: Collection[str]
    links: Prefixes


_FORMS = {"<name>": "[^/]+", "<number>": "[0-9]+", "<uuid>": UUID_FORM, "<address>": PCI_ADDRESS.pattern}
_CPUS, _NODE = "/sys/devices/system/cpu", "/sys/devices/system/node/node<number>"
_CONSOLE = ("name", "bind", "dev")
_PARENT, _SRIOV_ADMIN = f"{MDEV_PARENTS}/<name>", f"{PCI_DEVICES}/<name>/sriov_admin/<name>"
_PLACES = (
    Place(PCI_DEVICES, (), EVERY_LINK),
    Place(f"{PCI_DEVICES}/<name>", _FUNCTION, EVERY_LINK),
    Place("/sys/bus/pci", ("drivers_autoprobe",), ()),
    Place(PCI_DRIVERS, (), ()),
    Place(f"{PCI_DRIVERS}/<name>", (), EVERY_LINK),
    Place(f"{IOMMU_GROUPS}/<name>", ("type",), ()),
    Place(f"{IOMMU_GROUPS}/<name>/devices", (), EVERY_LINK),
    Place("/sys/class/iommu", (), EVERY_LINK),
    Place(MDEV_PARENTS, (), EVERY_LINK),
    Place(MDEV_DEVICES, (), EVERY_LINK),
    Place(_PARENT, ("numa_node",), ("driver", "physfn")),
    Place(f"{_PARENT}/mdev_supported_types/<name>", _TYPE, ()),
    Place(f"{_PARENT}/<uuid>", (), ("driver", "iommu_group", "mdev_type", "subsystem")),
    Place(f"{_PARENT}/<uuid>/nvidia", _NVIDIA, ()),  # not vm_name: the guest's name is private
    Place(f"{PCI_DEVICES}/<name>/nvidia", _NVIDIA, ()),
    Place(_SRIOV_ADMIN, (), ("device",)),
    Place(f"{_SRIOV_ADMIN}/profile", _PROFILE, ()),
    Place(f"{DEFINITIONS}/<name>", ("<uuid>",), ()),
    Place(OWN_DEFINITIONS, ("<address>.json",), ()),
    Place(DEVICES, ("<address>.toml",), ()),
    Place("/sys/class/iommu/<name>/intel-iommu", ("cap", "ecap"), ()),
    Place("/sys/module/vfio/parameters", ("enable_unsafe_noiommu_mode",), ()),
    Place("/sys/module/vfio_iommu_type1/parameters", ("allow_unsafe_interrupts", "dma_entry_limit"), ()),
    Place("/sys/kernel/security", ("lockdown",), ()),
    Place("/sys/class/vtconsole", (), EVERY_LINK),
    Place("/sys/class/vtconsole/<name>", _CONSOLE, ("subsystem",)),
    Place("/sys/class/graphics", (), EVERY_LINK),
    Place("/sys/class/graphics/<name>", _CONSOLE, ("subsystem",)),
    *(Place(f"/sys/bus/platform/drivers/{driver}", (), EVERY_LINK) for driver in FIRMWARE_FRAMEBUFFERS),
    Place(_NODE, ("cpulist", "cpumap", "distance", "meminfo"), ()),
    Place(f"{_NODE}/hugepages/<name>", ("nr_hugepages", "free_hugepages"), ()),
    Place(_CPUS, ("online", "isolated", "nohz_full"), ()),
    Place(f"{_CPUS}/cpu<number>/topology", ("thread_siblings_list",), ()),
    Place(f"{_CPUS}/cpu<number>/cache/<name>", ("level", "shared_cpu_list"), ()),
)


def places(kernel: FileReader) -> Iterator[Place]:
    """Yields the directories that there are, parents before children. Reads only what never blocks."""
    for place in _PLACES:
        for path in _paths(kernel, place.path):
            files = [name for file in place.files for name in _names(kernel, path, file)]
            if files or not place.files:
                yield Place(path, files, place.links)
    for driver in names_in(kernel, PCI_DRIVERS):
        if module := link_name(kernel, f"{PCI_DRIVERS}/{driver}/module"):
            yield Place(f"/sys/module/{module}", (), ())
            yield Place(f"/sys/module/{module}/drivers", (), EVERY_LINK)


def _paths(kernel: FileReader, path: str) -> Iterator[str]:
    """The directories that a path stands for."""
    if "<" not in path:
        return iter((path,) if kernel.has(path) else ())
    above, _, last = path.rpartition("/")
    paths = (f"{home}/{name}" for home in _paths(kernel, above) for name in _names(kernel, home, last))
    return paths if "<" in last else filter(kernel.has, paths)


def _names(kernel: FileReader, directory: str, name: str) -> Sequence[str]:
    """The names in a directory that a name stands for."""
    if "<" not in name:
        return (name,)
    form = re.compile(re.sub("<[a-z]+>", lambda match: _FORMS[match[0]], re.escape(name)))
    return [known for known in names_in(kernel, directory) if form.fullmatch(known)]


class PlaceReader:
    """Reads directories one by one, in a worker. `wanted`: by path, the files and the prefixes of links."""

    def __init__(self, kernel: FileReader, wanted: Mapping[str, tuple[Collection[str], Prefixes]]) -> None:
        self._kernel, self._wanted = kernel, wanted

    def __call__(self, path: str) -> tuple[Any, ...] | int:
        """A `Directory` as plain data, or the errno of the refusal."""
        try:
            return tuple(self._kernel.directory(path, *self._wanted[path]))
        except KernelRefused as error:
            return error.errno
