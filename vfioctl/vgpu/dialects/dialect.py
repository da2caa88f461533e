"""The protocol of a dialect, which reads one of the kernel's vGPU interfaces, and what several dialects share. Imports
no model: its readers run in workers while the caller still imports one."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in, number_in, physical
from vfioctl.kernel.protocol import PCI_ADDRESS, Directory, FileReader

Facts = dict[str, Any]
"""Plain data: `card`, `offers`, `unknown`, `types`, `instances`, `of_card`; each may be missing."""


class Dialect(Protocol):
    """Reads one vGPU interface on one host. A new dialect implements this, and is listed in `scan.READERS`."""

    dialect: str

    def __init__(self, kernel: FileReader) -> None: ...

    def parents(self) -> Iterable[str]:
        """The devices that vGPUs are created on. Reads only what never blocks."""

    def read(self, parent: str) -> Facts:
        """The facts of one parent. Runs in a worker (`Kernel.survey`). Raises KernelRefused when the parent is gone."""


def card_facts(kernel: FileReader, home: str) -> Facts:
    """The facts of a PF, or of a parent that is no PCI function. Missing files are left out."""
    try:
        directory = kernel.directory(home, ("numa_node", "sriov_totalvfs"), ("driver",))
    except KernelRefused:
        return {}
    facts: Facts = {"numa_node": number_in(directory.texts.get("numa_node", "")), "driver": driver_in(directory)}
    if total := number_in(directory.texts.get("sriov_totalvfs", "")):
        facts["total_vfs"] = total
    return facts


def instance_facts(kernel: FileReader, home: str) -> Facts:
    """Driver, IOMMU group, VFIO nodes and mdev type of a vGPU's device. Raises KernelRefused when it is gone."""
    directory = kernel.directory(home, {"numa_node"}, ("driver", "iommu_group", "mdev_type"))
    group = number_in(directory.links.get("iommu_group", "").rpartition("/")[2])
    facts: Facts = {"driver": driver_in(directory), "iommu_group": group}
    if kind := directory.links.get("mdev_type"):
        facts["type"] = kind.rpartition("/")[2]
    if group is not None and kernel.has(f"/dev/vfio/{group}"):
        facts["vfio_group"] = f"/dev/vfio/{group}"
    if "numa_node" in directory.texts:
        facts["numa_node"] = number_in(directory.texts["numa_node"])
    for name in names_in(kernel, f"{home}/vfio-dev") if "vfio-dev" in directory.names else ():
        if kernel.has(f"/dev/vfio/devices/{name}"):
            facts["vfio_cdev"] = f"/dev/vfio/devices/{name}"
    return facts


def own_attributes(kernel: FileReader, folder: str, files: Collection[str]) -> tuple[Mapping[str, str], Facts]:
    """The texts of the non-empty files in the vendor driver's directory, and by file, why others could not be read.
    NVIDIA's driver returns ENXIO for files that have no value before a guest runs; these are left out."""
    try:
        directory = kernel.directory(folder, files, ("",))
    except KernelRefused as error:
        return {}, {} if error.symbol == "ENOENT" else {folder.rpartition("/")[2]: error.symbol}
    refused = {name: why for name, why in directory.refused.items() if why != "ENXIO"}
    return {name: text for name, text in directory.texts.items() if text.strip()}, refused


def card_of(kernel: FileReader, parent: str) -> str:
    """The card of a parent: the PF of a VF; a PF, or a device that is no PCI function, is its own."""
    return physical(kernel, parent) if PCI_ADDRESS.fullmatch(parent) else parent


def driver_in(directory: Directory) -> str | None:
    return directory.links.get("driver", "").rpartition("/")[2] or None


_MIB, _GIB = 1 << 20, 1 << 30
_PAIR = re.compile(r"([a-z_]{1,32})=([0-9a-zA-Z]{1,32})", re.ASCII)
_PROFILE = re.compile(
    r".*?[A-Za-z0-9]-(?:(?P<slices>[1-9])-)?(?P<memory>[0-9]{1,3})[ABCQ][0-9]?(?:ME|NOME|MEALL|GFX)*", re.ASCII
)
_SIZE = re.compile(r"([0-9]{1,9})M", re.ASCII)
_VIDEO_MEMORY = re.compile(r"\b([1-9][0-9]{0,6}) MB video memory\b", re.ASCII)
_GVT = re.compile(r"^(low_gm_size|high_gm_size|fence): ([1-9][0-9]{0,6})(?:MB)?$", re.ASCII | re.MULTILINE)
_GVT_AMOUNTS = 3


def described(name: str, description: str) -> Facts:
    """The fields of `VgpuType` that follow from its name and description: free text of drivers, in these forms.
    `num_heads=1, frl_config=60, framebuffer=4096M, max_resolution=4096x2400, max_instance=4` (NVIDIA),
    `virtual display, 16 MB video memory` (samples/vfio-mdev/mbochs.c), `low_gm_size: 128MB` and so on, a line each
    (GVT-g). Malformed parts are ignored."""
    profile = next(iter(name.rsplit(maxsplit=1)[-1:]), "")
    return {"profile": profile, **_by_profile(profile), **_by_pairs(description), **_by_amounts(description)}


def _by_profile(profile: str) -> Facts:
    """NVIDIA's profile names: card, MIG slices for a MIG-backed type, GiB, series. `0` stands for half a GiB."""
    match = _PROFILE.fullmatch(profile)
    if match is None:
        return {}
    facts: Facts = {"framebuffer_bytes": int(match["memory"]) * _GIB or _GIB // 2}
    return facts | ({"mig_slices": int(match["slices"])} if match["slices"] else {})


def _by_pairs(description: str) -> Facts:
    pairs = dict(_PAIR.findall(description[:4096]))
    facts: Facts = {}
    if (size := _SIZE.fullmatch(pairs.get("framebuffer", ""))) and int(size[1]):
        facts["framebuffer_bytes"] = int(size[1]) * _MIB
    for key, field in (("num_heads", "heads"), ("max_instance", "max_instances")):
        if re.fullmatch(r"[0-9]{1,6}", pairs.get(key, ""), re.ASCII):
            facts[field] = int(pairs[key])
    if "max_resolution" in pairs:
        facts["max_resolution"] = pairs["max_resolution"]
    return facts


def _by_amounts(description: str) -> Facts:
    """The amounts that a type uses of a pool that all types of its device share."""
    amounts = {name: int(number) for name, number in _GVT.findall(description[:4096])}
    if len(amounts) == _GVT_AMOUNTS:
        return {"takes": amounts, "framebuffer_bytes": (amounts["low_gm_size"] + amounts["high_gm_size"]) * _MIB}
    if video := _VIDEO_MEMORY.search(description[:4096]):
        return {"takes": {"video memory": int(video[1])}, "framebuffer_bytes": int(video[1]) * _MIB}
    return {}
