"""Finds the device files of a claim's devices. May not write."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from vfioctl.claims.model.documents import Nodes
from vfioctl.inventory.api import InventoryApi
from vfioctl.vgpu.api import VgpuApi

if TYPE_CHECKING:
    from vfioctl.claims.model.claim import Claim
    from vfioctl.session import Session


def nodes_of(session: Session, claim: Claim) -> Mapping[str, Nodes]:
    """Return the VFIO device files of the claim's devices, by address or UUID, as they are now."""
    functions = InventoryApi(session).inventory(nvml=False).functions
    ours = {each.subject for each in claim.devices}
    nodes: dict[str, Nodes] = {f.address: Nodes(f.vfio_group, f.vfio_cdev) for f in functions if f.address in ours}
    if claim.mdevs:
        vgpus = {vgpu.id: vgpu for vgpu in VgpuApi(session).vgpus().instances}
        for each in claim.mdevs:
            nodes[each] = Nodes(vgpus[each].vfio_group, vgpus[each].vfio_cdev) if each in vgpus else Nodes()
    return nodes
