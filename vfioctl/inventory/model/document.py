"""The JSON document of a listing, and the count of its GPUs by state. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from vfioctl.core.frozen import record_class
from vfioctl.core.reservations import Reservation
from vfioctl.inventory.model.functions import Function, Inventory, ProbeWarning
from vfioctl.inventory.model.machine import Card, Group, Iommu, NumaNode
from vfioctl.inventory.model.values import PciAddress


@record_class
class Tally:
    """How many GPUs are ready for a guest, claimed, and free. One may be ready and claimed."""

    ready: int
    claimed: int
    """a claim has it, or a part of it"""
    free: int
    """a claim may take it as a whole: nothing of it is claimed, it has no VFs or mediated devices, and it is neither
    wedged nor dead, nor the boot display, nor a VF that lacks its vGPU"""


@record_class
class InventoryDocument:
    """The JSON document of `vfioctl inventory --json`. `functions` is set only with `--all` or a DEVICE."""

    gpus: tuple[Function, ...]
    functions: tuple[Function, ...] | None = None
    cards: tuple[Card, ...]
    groups: tuple[Group, ...]
    numa_nodes: tuple[NumaNode, ...]
    iommu: Iommu
    warnings: tuple[ProbeWarning, ...]
    unread: Mapping[PciAddress, str]
    """functions that could not be read, and why"""
    reservations: tuple[Reservation, ...] = ()
    tally: Tally
    """of the GPUs in `gpus`, VFs included"""


def tally_of(inventory: Inventory, gpus: Iterable[Function]) -> Tally:
    """Count these GPUs by their state."""
    reserved = {reservation.subject for reservation in inventory.reservations}
    ready = claimed = free = 0
    for gpu in gpus:
        is_whole = not (gpu.virtfns or gpu.mdevs or gpu.lacks_vgpu)
        ready += inventory.is_ready(gpu)
        claimed += gpu.address in reserved
        free += gpu.address not in reserved and is_whole and not (gpu.mark or gpu.boot_vga)
    return Tally(ready=ready, claimed=claimed, free=free)


def document_of(
    inventory: Inventory, *, everything: bool, shown: Sequence[Function] | None = None
) -> InventoryDocument:
    """Return the document of an inventory. `shown`: only these functions."""
    functions = inventory.functions if shown is None else tuple(shown)
    gpus = inventory.gpus if shown is None else tuple(function for function in functions if function.is_gpu)
    return InventoryDocument(
        gpus=gpus,
        functions=functions if everything else None,
        cards=inventory.cards,
        groups=inventory.groups,
        numa_nodes=inventory.numa_nodes,
        iommu=inventory.iommu,
        warnings=inventory.warnings,
        unread=inventory.unread,
        reservations=inventory.reservations,
        tally=tally_of(inventory, gpus),
    )
