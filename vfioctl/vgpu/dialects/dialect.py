"""What a dialect is: how one of the kernel's interfaces shows types and instances. And what several of them read alike.

Imports no model: its readers work in children while the caller still imports one.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Protocol

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import PCI_ADDRESS, PCI_DEVICES, Directory, FileReader

Facts = dict[str, Any]
"""Plain data: `card`, `offers`, `unknown`, `types`, `instances`, `of_card`; each may be missing."""

_FEW_DIGITS = 10
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)
LINKS = ("driver", "iommu_group", "physfn", "mdev_type")


class Dialect(Protocol):
    """One dialect on one host. A new one is a class like this, named in `scan.READERS`."""

    dialect: str

    def __init__(self, kernel: FileReader) -> None: ...

    def parents(self) -> Iterable[str]:
        """The places that instances are made on. Asks only what never blocks."""

    def read(self, parent: str) -> Facts:
        """What one place shows. Runs in a child (`Kernel.survey`); raises KernelRefused when it has gone."""


class Seen:
    """What a child has told already: of the twins on a card, each type and the card itself are read once."""

    def __init__(self) -> None:
        self._cards: set[str] = set()
        self._types: dict[str, set[str]] = {}

    def is_first(self, card: str) -> bool:
        """Whether a card's own facts were not asked for before."""
        is_first = card not in self._cards
        self._cards.add(card)
        return is_first

    def new(self, card: str, names: Iterable[str]) -> set[str]:
        """Those of the types that are not known of the card."""
        return set(names) - self._types.get(card, set())

    def add(self, card: str, name: str) -> None:
        self._types.setdefault(card, set()).add(name)


def card_facts(kernel: FileReader, home: str) -> Facts:
    """What there is to say of a PF, or of a device that is none. Tolerates whatever is missing."""
    try:
        found = kernel.directory(home, ("numa_node", "sriov_totalvfs"), ("driver",))
    except KernelRefused:
        return {}
    facts: Facts = {"numa_node": node_in(found.texts.get("numa_node", "")), "driver": driver_in(found)}
    if total := number_in(found.texts.get("sriov_totalvfs", "")):
        facts["total_vfs"] = total
    return facts


def instance_facts(kernel: FileReader, home: str, files: Collection[str] = ()) -> tuple[Facts, Directory]:
    """Driver, group and nodes of an instance's own device. Raises KernelRefused when it has gone."""
    found = kernel.directory(home, {"numa_node", *files}, LINKS)
    group = number_in(found.links.get("iommu_group", "").rpartition("/")[2])
    facts: Facts = {"driver": driver_in(found), "iommu_group": group}
    if group is not None and kernel.has(f"/dev/vfio/{group}"):
        facts["vfio_group"] = f"/dev/vfio/{group}"
    if "numa_node" in found.texts:
        facts["numa_node"] = node_in(found.texts["numa_node"])
    for name in names_in(kernel, f"{home}/vfio-dev") if "vfio-dev" in found.names else ():
        if kernel.has(f"/dev/vfio/devices/{name}"):
            facts["vfio_cdev"] = f"/dev/vfio/devices/{name}"
    return facts, found


def own_attributes(kernel: FileReader, folder: str, files: Collection[str]) -> tuple[Mapping[str, str], Facts]:
    """The texts of a driver's own folder that say something, and why others could not be read.

    ENXIO is how NVIDIA's driver says that there is nothing to say before a guest runs.
    """
    try:
        found = kernel.directory(folder, files, ("",))
    except KernelRefused as error:
        return {}, {} if error.symbol == "ENOENT" else {folder.rpartition("/")[2]: error.symbol}
    refused = {name: why for name, why in found.refused.items() if why != "ENXIO"}
    return {name: text for name, text in found.texts.items() if text.strip()}, refused


def driver_in(found: Directory) -> str | None:
    return found.links.get("driver", "").rpartition("/")[2] or None


def number_in(text: str) -> int | None:
    """A decimal number, as sysfs writes one; None for anything else."""
    if len(text) < _FEW_DIGITS and text.isascii() and text.isdecimal():
        return int(text)
    # stripped for both: the separators \x1c to \x1f are spaces to strip() and none to int()
    text = text.strip()
    return int(text) if _NUMBER.fullmatch(text) else None


def node_in(text: str) -> int | None:
    """A NUMA node; None for -1, which says that there is none."""
    return number_in(text)


def physical(kernel: FileReader, address: str) -> str:
    """The PF that a VF belongs to; the function itself where it is none."""
    try:
        name = kernel.link(f"{PCI_DEVICES}/{address}/physfn").rpartition("/")[2]
    except KernelRefused:
        return address
    return name if PCI_ADDRESS.fullmatch(name) else address
