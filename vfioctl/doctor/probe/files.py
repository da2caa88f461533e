"""Reads the few files of a host that the checks judge. May not write. One that is refused or damaged costs its own
facts."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping

from vfioctl.binding.model.given_ids import MODPROBE
from vfioctl.doctor.model.facts import FileText, Framebuffer, ModuleState, Pages
from vfioctl.doctor.probe.accounts import ID, names_by_id
from vfioctl.errors import KernelRefused
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.host_paths import FIRMWARE_FRAMEBUFFERS
from vfioctl.kernel.lenient import files_in, names_in, number_in, number_of, permissions_of, text_of
from vfioctl.kernel.protocol import IOMMU_GROUPS, PCI_DEVICES, FileReader, Reader

PLATFORM_DRIVERS = "/sys/bus/platform/drivers"
EFI_VARIABLES = "/sys/firmware/efi/efivars"
SECURE_BOOT = f"{EFI_VARIABLES}/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
UDEV_RULES = tuple(f"{home}/60-vfioctl.rules" for home in ("/etc/udev/rules.d", "/run/udev/rules.d"))
UDEV_RULES += tuple(f"{home}/udev/rules.d/60-vfioctl.rules" for home in ("/usr/local/lib", "/usr/lib", "/lib"))
_MODULES = re.compile(r"^[^:\n]*/vfio-pci\.ko", re.MULTILINE)
_MOST_CHIPS, _MOST_FILES = 64, 200
_MEMORY, _UNASSIGNED = 0x200, re.compile(r"0x0+ 0x0*[1-9a-f][0-9a-f]* 0x([0-9a-f]{1,16})", re.ASCII)
_BARS = 6
_PAGE_SIZE = re.compile(r"hugepages-([0-9]{1,9})kB", re.ASCII)


def read_text(kernel: FileReader, path: str) -> FileText:
    """Return a file's text, or why it could not be read."""
    try:
        return FileText(path, kernel.read(path))
    except KernelRefused as error:
        return FileText(path, refused="" if error.symbol in ("ENOENT", "ENOTDIR") else error.symbol)


def read_reserved(kernel: FileReader, groups: Collection[int]) -> Mapping[int, FileText]:
    """Return the reserved regions of IOMMU groups, by group, where the kernel has the file. Source:
    Documentation/ABI/testing/sysfs-kernel-iommu_groups."""
    found = {group: read_text(kernel, f"{IOMMU_GROUPS}/{group}/reserved_regions") for group in sorted(groups)}
    return {group: file for group, file in found.items() if file.text is not None or file.refused}


def read_irq_chips(kernel: FileReader) -> tuple[str, ...]:
    """Return the controllers of the first interrupts. Source: Documentation/ABI/testing/sysfs-kernel-irq."""
    numbers = sorted(int(name) for name in names_in(kernel, "/sys/kernel/irq") if re.fullmatch("[0-9]{1,6}", name))
    chips = (text_of(kernel, f"/sys/kernel/irq/{number}/chip_name") for number in numbers[:_MOST_CHIPS])
    return tuple(dict.fromkeys(filter(None, chips)))


def read_ecaps(kernel: FileReader) -> tuple[FileText, ...]:
    """Return the extended capabilities of VT-d units. Source: Documentation/ABI/testing/sysfs-class-iommu-intel-iommu
    in the kernel's sources."""
    units = [name for name in names_in(kernel, "/sys/class/iommu") if name.startswith("dmar")]
    texts = (read_text(kernel, f"/sys/class/iommu/{unit}/intel-iommu/ecap") for unit in units[:_MOST_FILES])
    return tuple(text for text in texts if text.text is not None)


def read_caps(kernel: FileReader) -> tuple[FileText, ...]:
    """Return the capabilities of VT-d units, also those that could not be read; see `read_ecaps`."""
    units = [name for name in names_in(kernel, "/sys/class/iommu") if name.startswith("dmar")]
    texts = (read_text(kernel, f"/sys/class/iommu/{unit}/intel-iommu/cap") for unit in units[:_MOST_FILES])
    return tuple(text for text in texts if text.text is not None or text.refused)


def read_vfio_pci(kernel: FileReader, drivers: Iterable[str], functions: Iterable[Function]) -> ModuleState:
    """Return where vfio-pci is. `drivers`: the PCI drivers that are registered."""
    if "vfio-pci" in drivers:
        return ModuleState.LOADED
    if any("vfio-pci" in function.available_drivers for function in functions):
        return ModuleState.AVAILABLE
    home = f"/lib/modules/{text_of(kernel, '/proc/sys/kernel/osrelease')}"
    if _MODULES.search(text_of(kernel, f"{home}/modules.builtin")):
        return ModuleState.BUILT_IN
    listed = read_text(kernel, f"{home}/modules.dep")
    if listed.text is None:
        return ModuleState.UNKNOWN
    return ModuleState.AVAILABLE if _MODULES.search(listed.text) else ModuleState.MISSING


def read_nodes(kernel: Reader) -> Mapping[str, int | None]:
    """Return the nodes of VFIO that do not belong to a device, with their permission bits; None for unknown ones."""
    paths = ("/dev/vfio/vfio", "/dev/iommu")
    return {path: _mode(kernel, path) for path in paths if number_of(kernel, path)}


def read_groups(kernel: Reader, paths: Iterable[str]) -> Mapping[str, str]:
    """Return the groups of nodes by name, or by number where that is not known; none for root's."""
    owners = {path: permissions_of(kernel, path).split(":") for path in paths}
    known = {path: int(owner[1]) for path, owner in owners.items() if len(owner) > 1 and ID.fullmatch(owner[1])}
    gids = {path: gid for path, gid in known.items() if gid}
    names = names_by_id(text_of(kernel, "/etc/group")) if gids else {}
    return {path: names.get(gid, str(gid)) for path, gid in gids.items()}


def _mode(kernel: Reader, path: str) -> int | None:
    text = permissions_of(kernel, path)
    return int(text.rpartition(":")[2], 8) if text else None


def read_modprobe(kernel: FileReader) -> tuple[FileText, ...]:
    """Return the files of modprobe.d that name vfio. A file hides those of the same name in later directories."""
    texts = (read_text(kernel, path) for path in files_in(kernel, MODPROBE, ".conf")[:_MOST_FILES])
    return tuple(text for text in texts if text.refused or "vfio" in (text.text or ""))


def read_framebuffers(kernel: FileReader) -> tuple[Framebuffer, ...]:
    """Return the platform devices that drivers of firmware framebuffers have."""
    return tuple(
        Framebuffer(driver, name)
        for driver in FIRMWARE_FRAMEBUFFERS
        for name in names_in(kernel, f"{PLATFORM_DRIVERS}/{driver}")
        if re.fullmatch(r"[a-z][a-z0-9-]{0,31}\.[0-9]{1,3}", name, re.ASCII)
    )


def read_unassigned(kernel: FileReader, functions: Iterable[Function]) -> Mapping[PciAddress, tuple[int, ...]]:
    """Return the BARs without an address, of functions that have such. The kernel shows their sizes from address 0."""
    texts = {f.address: text_of(kernel, f"{PCI_DEVICES}/{f.address}/resource") for f in functions}
    numbers = {address: tuple(_without_address(text)) for address, text in texts.items()}
    return {address: bars for address, bars in numbers.items() if bars}


def _without_address(text: str) -> Iterator[int]:
    for number, line in enumerate(text.split("\n")[:_BARS]):
        match = _UNASSIGNED.fullmatch(line.strip())
        if match and int(match[1], 16) & _MEMORY:
            yield number


def read_pages(kernel: FileReader, nodes: Iterable[int]) -> tuple[Pages, ...]:
    """Return the hugepages of these NUMA nodes, as far as they can be read."""
    return tuple(pages for node in nodes for pages in _pages(kernel, node))


def _pages(kernel: FileReader, node: int) -> Iterator[Pages]:
    home = f"/sys/devices/system/node/node{node}/hugepages"
    for name in names_in(kernel, home):
        size = _PAGE_SIZE.fullmatch(name)
        total, free = (number_in(text_of(kernel, f"{home}/{name}/{kind}_hugepages")) for kind in ("nr", "free"))
        if size and total is not None and free is not None:
            yield Pages(node, int(size[1]) * 1024, total, free)
