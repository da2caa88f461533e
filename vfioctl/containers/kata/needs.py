"""What Kata's guest needs to have devices: PCIe ports and address space. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from vfioctl.claims.model.cdi import Node
from vfioctl.inventory.model.functions import Function, Inventory
from vfioctl.inventory.model.values import PciAddress, Subject

MOST_PORTS = 16
"""Kata's limit of root ports, and of switch ports."""
_LEFT_OUT = ("0600", "0604")
"""Classes that Kata does not attach from a group: host bridges and PCI bridges."""
_LEAST_WINDOW = 2 << 20


@dataclass(frozen=True)
class Needs:
    """The functions that the guest gets, each on a port of its own, and their address space in bytes."""

    functions: tuple[str, ...]
    window_64: int
    """The sum of the ports' windows for 64-bit prefetchable memory: each is a power of two."""
    window_32: int
    """The memory of BARs below 4 GiB."""

    @property
    def ports(self) -> int:
        return len(self.functions)


def needs_of(inventory: Inventory, subjects: Iterable[Subject], node: Node) -> Needs:
    """Return the needs of these devices. With a group node Kata attaches the whole group."""
    attached = dict.fromkeys(function for subject in subjects for function in _attached(inventory, subject, node))
    functions = [inventory.by_address[function] for function in attached if isinstance(function, PciAddress)]
    return Needs(
        functions=tuple(map(str, attached)),
        window_64=sum(_window(function.prefetchable_64) for function in functions),
        window_32=sum(bar.size for function in functions for bar in function.bars if bar.kind == "mem32"),
    )


def _attached(inventory: Inventory, subject: Subject, node: Node) -> Iterator[Subject]:
    function = inventory.by_address.get(subject) if isinstance(subject, PciAddress) else None
    if function is None or node is Node.CDEV or function.iommu_group is None:
        yield subject
        return
    for address in inventory.members_of(function.iommu_group):
        if _is_attached(inventory.by_address.get(address)):
            yield address


def _is_attached(function: Function | None) -> bool:
    return function is not None and function.class_code[:4] not in _LEFT_OUT


def _window(size: int) -> int:
    """Return the window of a port for the bytes of its device: the next power of two."""
    if not size:
        return 0
    return max(_LEAST_WINDOW, 1 << (size - 1).bit_length())
