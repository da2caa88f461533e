"""Reads which devices a container could get now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vfioctl.containers.cdi.choose import Passthrough, passthrough
from vfioctl.inventory.api import InventoryApi
from vfioctl.kernel.host_paths import MDEV_DEVICES

if TYPE_CHECKING:
    from vfioctl.claims.model.cdi import Node
    from vfioctl.inventory.model.functions import Inventory
    from vfioctl.session import Session
    from vfioctl.vgpu.model.vgpu import Vgpu


def read_passthrough(session: Session, node: Node, inventory: Inventory | None = None) -> Passthrough:
    """Return the functions and mediated devices that have this kind of node. `inventory`: one that was just read."""
    return passthrough(inventory or InventoryApi(session).inventory(nvml=False), _mdevs(session), node)


def _mdevs(session: Session) -> Sequence[Vgpu]:
    kernel = session.kernel
    if not kernel.has(MDEV_DEVICES) or not kernel.children(MDEV_DEVICES):
        return ()
    from vfioctl.vgpu.api import VgpuApi
    from vfioctl.vgpu.model.vgpu import Dialect

    return [vgpu for vgpu in VgpuApi(session).vgpus().instances if vgpu.dialect is Dialect.MDEV]
