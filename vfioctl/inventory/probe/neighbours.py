"""Finds the functions that must be read when only some are asked for. Reads names and links, which never block.

May not import a model: see `scan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from vfioctl.errors import KernelRefused
from vfioctl.kernel.lenient import names_in
from vfioctl.kernel.protocol import IOMMU_GROUPS, PCI_ADDRESS, PCI_DEVICES, Reader

_LINKS = ("iommu_group", "physfn", "virtfn", "supplier:pci:", "consumer:pci:")
_ALIKE = len("supplier:pci:")
"""The length of what comes before the address in the name of a link between devices."""


def neighbours(kernel: Reader, asked: Iterable[str]) -> list[str] | None:
    """Return the functions with these addresses, those on their buses, and the cards, groups, PFs and VFs of them all.

    None if the whole host has to be read: a function does not exist, or its group does not list it.
    """
    existing = names_in(kernel, PCI_DEVICES)
    waiting = [name for address in asked for name in (address, *_beginning(existing, address.rpartition(":")[0]))]
    if not set(waiting) <= set(existing):
        return None
    members: set[str] = set()
    while waiting:
        address = waiting.pop()
        if address in members or address not in existing:
            continue
        members.add(address)
        waiting += _beginning(existing, address.rpartition(".")[0])
        try:
            links = kernel.directory(f"{PCI_DEVICES}/{address}", (), _LINKS).links
        except KernelRefused:
            continue
        for name, target in links.items():
            last = target.rpartition("/")[2]
            if name == "iommu_group":
                group = names_in(kernel, f"{IOMMU_GROUPS}/{last}/devices")
                if address not in group:
                    return None
                waiting += group
            else:
                waiting.append(last if name.startswith(("physfn", "virtfn")) else name[_ALIKE:])
    return sorted(members)


def _beginning(addresses: Sequence[str], beginning: str) -> Iterator[str]:
    return (address for address in addresses if address.startswith(beginning) and PCI_ADDRESS.fullmatch(address))
