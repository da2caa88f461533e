"""Finds the holders of functions and mediated devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from vfioctl.errors import UnknownDevice
from vfioctl.inventory.api import InventoryApi

if TYPE_CHECKING:
    from vfioctl.inventory.api import Processes
    from vfioctl.inventory.model.holders import Holders
    from vfioctl.vgpu.model.vgpu import Vgpus

_DASHES = 4


def holders(devices: InventoryApi, vgpus: Callable[[], Vgpus], selectors: Sequence[str], *, every: bool) -> Holders:
    """See `VgpuApi.holders`."""
    processes = devices.processes()  # its workers run while the rest is read
    words = [word for word in selectors if word.count("-") != _DASHES]
    mdevs = [word for word in selectors if word not in words]
    of_mdevs = _holders_of_mdevs(devices, vgpus(), mdevs, processes) if mdevs else None
    if of_mdevs and not words:
        return of_mdevs
    found = devices.holders(words, every=every, processes=processes)
    if of_mdevs is None:
        return found
    return found.model_copy(
        update={
            "devices": (*found.devices, *of_mdevs.devices),
            "holders": (*found.holders, *of_mdevs.holders),
            "marks": (*found.marks, *of_mdevs.marks),
        }
    )


def _holders_of_mdevs(devices: InventoryApi, found: Vgpus, words: Sequence[str], processes: Processes) -> Holders:
    """The holders of mediated devices, and the ledger's marks on these. Raises UnknownDevice."""
    from vfioctl.inventory.model.values import Uuid

    mdevs = [Uuid(word) for word in words]
    groups: Mapping[str, int | None] = {v.id: v.iommu_group for v in found.instances if v.state != "defined"}
    if missing := [mdev for mdev in mdevs if mdev not in groups]:
        raise UnknownDevice(f"there is no vGPU {missing[0]} here", hint="vfioctl vgpu list shows those that are")
    marks = devices.marks()
    held = devices.holders_of_mdevs(mdevs, processes, groups)
    return held.model_copy(update={"marks": tuple(marks[mdev] for mdev in mdevs if mdev in marks)})
