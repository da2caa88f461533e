"""The protocol of a dialect, which reads one of the kernel's vGPU interfaces, and reads that several dialects share.

Imports no model: its readers run in workers while the caller still imports one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in, number_in
from vfioctl.kernel.protocol import Directory, FileReader

Facts = dict[str, Any]
"""Plain data: `card`, `offers`, `unknown`, `types`, `instances`, `of_card`; each may be missing."""

LINKS = ("driver", "iommu_group", "physfn", "mdev_type")


class Dialect(Protocol):
    """Reads one vGPU interface on one host. A new dialect implements this, and is listed in `scan.READERS`."""

    dialect: str

    def __init__(self, kernel: FileReader) -> None: ...

    def parents(self) -> Iterable[str]:
        """The devices that vGPUs are created on. Reads only what never blocks."""

    def read(self, parent: str) -> Facts:
        """The facts of one parent. Runs in a worker (`Kernel.survey`). Raises KernelRefused when the parent is gone."""


class Seen:
    """What a worker has already read: parents of one card have the same types, so each type and card is read once."""

    def __init__(self) -> None:
        self._cards: set[str] = set()
        self._types: dict[str, set[str]] = {}

    def is_first(self, card: str) -> bool:
        """Whether this is the first call for the card."""
        is_first = card not in self._cards
        self._cards.add(card)
        return is_first

    def new(self, card: str, names: Iterable[str]) -> set[str]:
        """The types of the card that were not read before."""
        return set(names) - self._types.get(card, set())

    def add(self, card: str, name: str) -> None:
        self._types.setdefault(card, set()).add(name)


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


def instance_facts(kernel: FileReader, home: str, files: Collection[str] = ()) -> tuple[Facts, Directory]:
    """Driver, IOMMU group and VFIO nodes of a vGPU's device. Raises KernelRefused when it is gone."""
    directory = kernel.directory(home, {"numa_node", *files}, LINKS)
    group = number_in(directory.links.get("iommu_group", "").rpartition("/")[2])
    facts: Facts = {"driver": driver_in(directory), "iommu_group": group}
    if group is not None and kernel.has(f"/dev/vfio/{group}"):
        facts["vfio_group"] = f"/dev/vfio/{group}"
    if "numa_node" in directory.texts:
        facts["numa_node"] = number_in(directory.texts["numa_node"])
    for name in names_in(kernel, f"{home}/vfio-dev") if "vfio-dev" in directory.names else ():
        if kernel.has(f"/dev/vfio/devices/{name}"):
            facts["vfio_cdev"] = f"/dev/vfio/devices/{name}"
    return facts, directory


def own_attributes(kernel: FileReader, folder: str, files: Collection[str]) -> tuple[Mapping[str, str], Facts]:
    """The texts of the non-empty files in the vendor driver's directory, and by file, why others could not be read.

    NVIDIA's driver returns ENXIO for files that have no value before a guest runs; these are left out.
    """
    try:
        directory = kernel.directory(folder, files, ("",))
    except KernelRefused as error:
        return {}, {} if error.symbol == "ENOENT" else {folder.rpartition("/")[2]: error.symbol}
    refused = {name: why for name, why in directory.refused.items() if why != "ENXIO"}
    return {name: text for name, text in directory.texts.items() if text.strip()}, refused


def driver_in(directory: Directory) -> str | None:
    return directory.links.get("driver", "").rpartition("/")[2] or None
