"""Reads one PCI function from its sysfs directory as plain facts. Runs in workers, which may be abandoned
(`Kernel.survey`), so it returns plain data and may not keep state. Facts are named and typed as the fields of
`Function` (which `function_of` makes of them), but for plain texts and tuples, and `local_cpus`: the texts of
local_cpulist and local_cpus of a function without numa_node. Sources: Documentation/ABI/testing/sysfs-bus-pci;
include/linux/ioport.h for the resource flags."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in, text_of
from vfioctl.kernel.modalias import ID_FILES, ids_in, ids_of, modalias_of
from vfioctl.kernel.protocol import IOMMU_GROUPS, PCI_ADDRESS, PCI_DEVICES, Reader, per_subject
from vfioctl.units import UUID

Facts = dict[str, Any]

# Every kernel reads these without the device lock, so they are safe on a stuck function.
SAFE = frozenset({"modalias", "numa_node", "resource", "boot_vga"})
_LINK = frozenset({"current_link_speed", "current_link_width", "max_link_speed", "max_link_width"})
_IN_FACTS = frozenset({"modalias", "driver_override"})
ALL = SAFE | _LINK | {"power_state", "d3cold_allowed", "reset_method", "driver_override", "sriov_totalvfs"}
_PHYSICAL = _LINK | {"boot_vga", "sriov_totalvfs"}
"""Not read from VFs, of which a host has thousands: they have none of their own."""
_NAMES = ("driver", "iommu_group", "physfn", "mdev_supported_types", "vfio-dev")
_MORE_LINKS = ("virtfn", "supplier:pci:", "consumer:pci:")
"""Links that only physical functions have."""

_SIGNED = re.compile(r"-?[0-9]{1,9}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
_EMPTY_BAR = "0x0000000000000000 0x0000000000000000"
_IO, _MEM, _PREFETCH, _MEM_64 = 0x100, 0x200, 0x2000, 0x100000
_ROM, _BARS = 6, 7
_LAST_NODE = (1 << 20) - 1
"""Far above MAX_NUMNODES of any architecture."""


def read_everything(kernel: Reader, address: str) -> Facts:
    """Return all facts of one function, with its group's type. A VF's link and upstream bridge are those of its PF."""
    facts = read_function(kernel, address, ALL)
    if "physfn" not in facts:
        facts["upstream"] = _upstream(kernel, address)
    elif facts.get("driver") == "nvidia":
        facts["vgpu_type"] = _vgpu_type(kernel, address, facts["unknown"])
    if "iommu_group" in facts:
        facts["iommu_group_type"] = text_of(kernel, f"{IOMMU_GROUPS}/{facts['iommu_group']}/type") or None
    return facts


def read_function(kernel: Reader, address: str, wanted: frozenset[str]) -> Facts:
    """Return facts of one function as fields of model.Function; `unknown` names those that failed. Raises KernelRefused
    if the function is gone, ValueError if neither its modalias nor its files identify it."""
    home = f"{PCI_DEVICES}/{address}"
    directory = kernel.entries(home, wanted - _PHYSICAL, _NAMES)
    facts: Facts = {"address": address, "unknown": dict(directory.refused)}
    facts |= _identity(directory.texts.get("modalias", "")) or _identity_in_files(kernel, address, facts["unknown"])
    facts |= _links(directory.links, facts["unknown"])
    facts |= _attributes(directory.texts, facts["unknown"])
    if "physfn" not in directory.links:
        facts |= _of_physical(kernel, home, wanted & _PHYSICAL, facts["unknown"])
    if "numa_node" not in directory.names and "numa_node" in wanted:
        facts["local_cpus"] = text_of(kernel, f"{home}/local_cpulist"), text_of(kernel, f"{home}/local_cpus")
    if "reset_method" not in directory.names:
        facts["reset_unnamed"] = kernel.has(f"{home}/reset") and not kernel.has(f"{home}/reset_method")
    if "mdev_supported_types" in directory.names:
        facts["mdevs"] = tuple(sorted(name.lower() for name in kernel.children(home) if UUID.fullmatch(name)))
    if "vfio-dev" in directory.names:
        facts["vfio_cdev"] = _cdev(kernel, address)
    return facts


@per_subject
def read_again(kernel: Reader, address: str) -> Facts | None:
    """Return a function's facts; None if it is gone."""
    try:
        return read_function(kernel, address, _IN_FACTS)
    except (KernelRefused, ValueError):
        return None


def _of_physical(kernel: Reader, home: str, wanted: frozenset[str], unknown: dict[str, str]) -> Facts:
    directory = kernel.directory(home, wanted, _MORE_LINKS)
    unknown |= directory.refused
    return _links(directory.links, unknown) | _attributes(directory.texts, unknown) | _link(directory.texts)


def _upstream(kernel: Reader, address: str) -> str | None:
    """Return the bridge above: the parent of the function's directory. None in a copy that followed the links."""
    try:
        above = kernel.link(f"{PCI_DEVICES}/{address}").split("/")[-2:-1]
    except KernelRefused as error:
        if error.symbol != "EINVAL":
            raise
        return None
    return above[0] if above and PCI_ADDRESS.fullmatch(above[0]) else None


def _vgpu_type(kernel: Reader, address: str, unknown: dict[str, str]) -> str | None:
    """Return the id of the vGPU type that a VF has; None for 0, and where the driver has no such file."""
    try:
        kind = kernel.read(f"{PCI_DEVICES}/{address}/nvidia/current_vgpu_type").strip()
    except KernelRefused as error:
        if error.symbol != "ENOENT":
            unknown["current_vgpu_type"] = error.symbol
        return None
    return kind if kind not in ("", "0") else None


def _cdev(kernel: Reader, address: str) -> str | None:
    """Return its VFIO device node, on kernels that create one (CONFIG_VFIO_DEVICE_CDEV)."""
    for name in names_in(kernel, f"{PCI_DEVICES}/{address}/vfio-dev"):  # an unbind meanwhile removes it
        if kernel.has(f"/dev/vfio/devices/{name}"):
            return f"/dev/vfio/devices/{name}"
    return None


@lru_cache(maxsize=4096)  # identical devices share it
def _identity(modalias: str) -> Facts:
    ids = ids_of(modalias)
    return _identity_of(ids) if ids else {}


def _identity_in_files(kernel: Reader, address: str, unknown: dict[str, str]) -> Facts:
    """Return the identity of a function whose modalias does not parse, as in some captures."""
    directory = kernel.directory(f"{PCI_DEVICES}/{address}", ID_FILES, ())
    ids = ids_in(directory.texts)
    if ids is None:
        raise ValueError("neither its modalias nor its file class says what it is")
    unknown |= {
        name: directory.refused.get(name, "it has no such file") for name in ID_FILES if name not in directory.texts
    }
    return _identity_of(ids)


def _identity_of(ids: tuple[str, ...]) -> Facts:
    vendor, device, subvendor, subdevice, base, sub, interface = (part.lower() for part in ids)
    return {
        "modalias": modalias_of(ids),
        "vendor_id": vendor[-4:],
        "device_id": device[-4:],
        "subsystem_vendor_id": subvendor[-4:],
        "subsystem_device_id": subdevice[-4:],
        "class_code": base + sub + interface,
    }


def _links(links: Mapping[str, str], unknown: dict[str, str]) -> Facts:
    facts: Facts = {}
    several: dict[str, list[str]] = {"virtfns": [], "suppliers": [], "consumers": []}
    for name, target in links.items():
        last = target.rpartition("/")[2]
        if name == "driver" or (name == "physfn" and PCI_ADDRESS.fullmatch(last)):
            facts[name] = last
        elif name == "iommu_group" and _NUMBER.fullmatch(last):
            facts[name] = int(last)
        elif name.startswith("virtfn") and PCI_ADDRESS.fullmatch(last):
            several["virtfns"].append(last)
        elif name.startswith(("supplier:pci:", "consumer:pci:")) and PCI_ADDRESS.fullmatch(name[13:]):
            several[name[:8] + "s"].append(name[13:])
        elif name.startswith(("physfn", "virtfn", "iommu_group", "supplier:pci:", "consumer:pci:")):
            unknown[name] = f"unexpected target {target[:40]!r}"
    return facts | {key: tuple(sorted(values)) for key, values in several.items() if values}


def _attributes(texts: Mapping[str, str], unknown: dict[str, str]) -> Facts:
    facts: Facts = {}
    for name, text in texts.items():
        if name in _READERS:
            try:
                facts |= _READERS[name](text)
            except ValueError:
                unknown[name] = f"unexpected text {text[:40]!r}"
    return facts


def _number(text: str, *, least: int, most: int) -> int:
    if not _SIGNED.fullmatch(text) or not least <= int(text) <= most:
        raise ValueError
    return int(text)


def _numa_node(text: str) -> Facts:
    return {"numa_node": node if (node := _number(text, least=-_LAST_NODE, most=_LAST_NODE)) >= 0 else None}


def _resource(text: str) -> Facts:
    bars, prefetchable_64 = [], 0
    for index, line in enumerate(text.split("\n")[:_BARS]):
        if line.startswith(_EMPTY_BAR):
            continue
        start, end, flags = (int(part, 16) for part in line.split())
        if not flags & (_IO | _MEM):
            continue
        wide, prefetchable = bool(flags & _MEM_64), bool(flags & _PREFETCH)
        if not 0 <= start <= end < 1 << 64:
            raise ValueError
        size = end - start + 1
        kind = "io" if flags & _IO else "mem64" if wide else "mem32"
        bars.append((index, size, kind, prefetchable))
        if wide and prefetchable and index != _ROM:
            prefetchable_64 += size
    return {"bars": tuple(bars), "prefetchable_64": prefetchable_64}


_READERS: Mapping[str, Callable[[str], Facts]] = {
    "numa_node": _numa_node,
    "driver_override": lambda text: {"driver_override": None if text in ("(null)", "") else text},
    "resource": _resource,
    "boot_vga": lambda text: {"boot_vga": text == "1"},
    "power_state": lambda text: {"power_state": text},
    "d3cold_allowed": lambda text: {"d3cold_allowed": text == "1"},
    "reset_method": lambda text: {"reset_methods": tuple(text.split())},
    "sriov_totalvfs": lambda text: {"sriov_totalvfs": _number(text, least=0, most=0xFFFF)},
}


def _link(texts: Mapping[str, str]) -> Facts:
    if texts.keys().isdisjoint(_LINK):
        return {}
    link = (
        _speed(texts.get("current_link_speed", "")),
        _width(texts.get("current_link_width", "")),
        _speed(texts.get("max_link_speed", "")),
        _width(texts.get("max_link_width", "")),
    )
    return {"link": link}


def _speed(text: str) -> float | None:
    """Return the GT/s of `32.0 GT/s PCIe`; None for `Unknown` of a sleeping or dead device."""
    number = text.partition(" ")[0]
    return float(number) if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,3})?", number, re.ASCII) else None


def _width(text: str) -> int | None:
    """Return the lanes, at most 32. 0 means no link, 63 and 255 that the device did not answer."""
    width = int(text) if re.fullmatch(r"[0-9]{1,3}", text, re.ASCII) else 0
    return width if 0 < width <= 32 else None
