"""What has vGPUs and VFs made again at boot: mdevctl's definitions, and files of vfioctl's own. No input or output.

mdevctl's form is its own, so that it, and libvirt by it, can start what vfioctl defines: JSON with two spaces and no
last newline (mdevctl 1.2.0). NVIDIA's vendor-specific VFIO and counts of VFs have no such form: these are vfioctl's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import Field

from vfioctl.core.setting import DEFINITIONS, KEPT_HERE
from vfioctl.inventory.model.values import PciAddress, Uuid, Value
from vfioctl.vgpu.model.vgpu import VgpuType


class Kept(Value):
    """A file of vfioctl's own: the VFs of a PF, or the type of one VF."""

    version: int = Field(default=1, ge=1, le=1)
    device: PciAddress = Field(description="the PF whose VFs there are to be, or the VF")
    card: PciAddress = Field(description="the PF")
    vfs: int | None = Field(default=None, ge=1, le=65_535)
    type: str | None = Field(default=None, pattern="^[0-9]{1,9}$", description="by id; another driver may number anew")
    name: str | None = Field(default=None, max_length=100, description="of the type, by which it is looked for first")
    parameters: dict[str, str] = Field(default_factory=dict, description="by file of the VF's own")


def kept_file(subject: Uuid | PciAddress, parent: str) -> str:
    """Where a vGPU, or the VFs of a PF, are kept."""
    return f"{DEFINITIONS}/{parent}/{subject}" if isinstance(subject, Uuid) else f"{KEPT_HERE}/{subject}.json"


def definition_text(kind: str, parameters: Mapping[str, str]) -> str:
    """mdevctl's definition of a vGPU that starts with its parent."""
    attributes = [{name: value} for name, value in parameters.items()]
    return json.dumps({"mdev_type": kind, "start": "auto", "attrs": attributes}, indent=2)


def vgpu_text(card: str, device: PciAddress, kind: VgpuType, parameters: Mapping[str, str]) -> str:
    """A VF's type, as vfioctl keeps it."""
    return _text(
        Kept(
            device=device,
            card=PciAddress(card),
            type=kind.id,
            name=kind.name[:100] or None,
            parameters=dict(parameters),
        )
    )


def vfs_text(physical: PciAddress, count: int) -> str:
    """The VFs of a PF, as vfioctl keeps them."""
    return _text(Kept(device=physical, card=physical, vfs=count))


def _text(kept: Kept) -> str:
    return json.dumps(kept.model_dump(mode="json", exclude_none=True), indent=2)
