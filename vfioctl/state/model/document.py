"""The document: devices with their drivers and VFs, and vGPUs, now and at each boot. May not do input or output.

A setting that a document leaves out is left alone, and so is every device that it does not name."""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from vfioctl.binding.model.definition import DRIVER_FORM, Identity
from vfioctl.core.value import Value
from vfioctl.inventory.model.values import PciAddress
from vfioctl.units import Uuid

NONE = "none"
"""The driver of a device without one, and of a device that vfioctl binds to none at boot."""
_MOST = 4096
_MOST_VFS = 65_535
_MOST_PARAMETERS = 32
_PARAMETER = re.compile("[A-Za-z0-9_][A-Za-z0-9_/-]{0,99}", re.ASCII)
_VALUE = re.compile("[ -~]{0,1000}")


class VfPlace(Value):
    """Which VF a device is: VFs have no identity of their own."""

    of: PciAddress = Field(description="address of the PF, as this document names it")
    number: int = Field(ge=0, le=_MOST_VFS, description="N of the link virtfnN")


class DeviceState(Value):
    """One function. `address` is its name in the document; `identity` or `vf` say which function it is."""

    address: PciAddress
    driver: str | None = Field(
        default=None, pattern="^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$", description="the driver now; none for no driver"
    )
    driver_at_boot: str | None = Field(
        default=None, pattern=DRIVER_FORM, description="VFIO driver that vfioctl binds it to at each boot, or none"
    )
    boot_display: bool = Field(default=False, description="whether it may be bound to VFIO if it is the boot display")
    vfs: int | None = Field(default=None, ge=0, le=_MOST_VFS, description="number of VFs now")
    vfs_at_boot: int | None = Field(
        default=None, ge=0, le=_MOST_VFS, description="number of VFs that vfioctl creates at each boot"
    )
    vf: VfPlace | None = None
    identity: Identity | None = None

    @model_validator(mode="after")
    def _check_identity(self) -> Self:
        if (self.vf is None) is (self.identity is None):
            raise ValueError(f"{self.address} needs either identity or vf: vfioctl state show writes it")
        return self


class Presence(StrEnum):
    """Whether a vGPU is to exist."""

    PRESENT = "present"
    ABSENT = "absent"


class VgpuGoal(Value):
    """One vGPU. A mediated device is named by its UUID, a VF by its parent, which is the VF."""

    uuid: Uuid | None = None
    parent: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9:._-]{0,99}$",
        description="the function that it is on, as this document names it; or a device that is no PCI function",
    )
    type: str = Field(pattern="^[ -~]{1,100}$", description="id, name or profile")
    state: Presence = Presence.PRESENT
    at_boot: bool | None = Field(default=None, description="whether vfioctl creates it at each boot")
    parameters: dict[str, str] = Field(default_factory=dict, description="as for vgpu create --param")

    @model_validator(mode="after")
    def _check_parameters(self) -> Self:
        if len(self.parameters) > _MOST_PARAMETERS:
            raise ValueError(f"{self.name} has more than {_MOST_PARAMETERS} parameters")
        for name, value in self.parameters.items():
            if not _PARAMETER.fullmatch(name) or not _VALUE.fullmatch(value):
                raise ValueError(f"{name[:40]!a} with this value is no parameter of a vGPU")
        return self

    @property
    def name(self) -> str:
        """Its name in the document."""
        return self.uuid or self.parent


class HostState(Value):
    """The state of a host, or of some of its devices."""

    version: int = Field(ge=1, le=1)
    devices: tuple[DeviceState, ...] = Field(default=(), max_length=_MOST)
    vgpus: tuple[VgpuGoal, ...] = Field(default=(), max_length=_MOST)

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        known = {device.address: device for device in self.devices}
        _refuse_twice([device.address for device in self.devices])
        _refuse_twice([vgpu.name for vgpu in self.vgpus])
        for device in self.devices:
            if device.vf is not None:
                _check_vf(device.address, device.vf, known.get(device.vf.of))
        for vgpu in self.vgpus:
            if ":" in vgpu.parent and vgpu.parent not in known:
                raise ValueError(f"{vgpu.parent}, the parent of a vGPU, is not among the devices")
        return self


def _refuse_twice(names: list[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise ValueError(f"{name} is there twice")
        seen.add(name)


def _check_vf(address: str, vf: VfPlace, pf: DeviceState | None) -> None:
    if pf is None or pf.identity is None:
        raise ValueError(f"{vf.of}, the PF of {address}, is not among the devices")
    if pf.vfs is not None and vf.number >= pf.vfs:
        raise ValueError(f"{address} is VF {vf.number} of {vf.of}, which is to have {pf.vfs}: they are numbered from 0")
