"""Finds the holders of functions and mediated devices."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from vfioctl.inventory.api import InventoryApi

if TYPE_CHECKING:
    from vfioctl.inventory.api import Processes
    from vfioctl.inventory.model.holders import Holders
    from vfioctl.vgpu.model.vgpu import Vgpus

_BEGINNING = re.compile(r"[0-9a-fA-F-]{4,}", re.ASCII)
_HYPHENS = 4
"""The beginning of a UUID, or what was meant to be one; no name of a function is like that."""


def holders(devices: InventoryApi, vgpus: Callable[[], Vgpus], selectors: Sequence[str], *, every: bool) -> Holders:
    """See `VgpuApi.holders`."""
    processes = devices.processes()  # its workers run while the rest is read
    mdevs = [word for word in selectors if _BEGINNING.fullmatch(word) or word.count("-") >= _HYPHENS]
    words = [word for word in selectors if word not in mdevs]
    of_mdevs = _holders_of_mdevs(devices, vgpus(), mdevs, processes) if mdevs else None
    held = of_mdevs if of_mdevs and not words else devices.holders(words, every=every, processes=processes)
    if of_mdevs and words:
        held = replace(
            held,
            devices=(*held.devices, *of_mdevs.devices),
            holders=(*held.holders, *of_mdevs.holders),
            marks=(*held.marks, *of_mdevs.marks),
        )
    reserved = tuple(reservation for reservation in devices.reservations() if reservation.subject in held.devices)
    return replace(held, reservations=reserved)


def _holders_of_mdevs(devices: InventoryApi, vgpus: Vgpus, words: Sequence[str], processes: Processes) -> Holders:
    """The holders of mediated devices, and the ledger's marks on these. Raises UnknownDevice, BadSpec."""
    from vfioctl.units import Uuid
    from vfioctl.vgpu.model.lookup import instance_called

    mediated = tuple(vgpu for vgpu in vgpus.instances if vgpu.state != "defined" and vgpu.dialect == "mdev")
    groups: Mapping[str, int | None] = {vgpu.id: vgpu.iommu_group for vgpu in mediated}
    vgpus = replace(vgpus, instances=mediated)
    mdevs = [*dict.fromkeys(Uuid(instance_called(vgpus, word).id) for word in words)]
    marks = devices.marks()
    held = devices.holders_of_mdevs(mdevs, processes, groups)
    return replace(held, marks=tuple(marks[mdev] for mdev in mdevs if mdev in marks))
