"""Definitions: files from which vGPUs and VFs are created at boot. May not do input or output. Mediated devices have
mdevctl's format, so that mdevctl and libvirt can start them: JSON with an indent of two and no final newline (mdevctl
1.2.0). mdevctl has none for NVIDIA's vendor-specific VFIO and numbers of VFs: vfioctl uses its own."""

from __future__ import annotations

import json
from collections.abc import Mapping

from pydantic import Field

from vfioctl.core.change import Fact
from vfioctl.core.value import Value
from vfioctl.errors import DeviceMissing
from vfioctl.inventory.model.values import PciAddress
from vfioctl.kernel.host_paths import DEFINITIONS, OWN_DEFINITIONS
from vfioctl.vgpu.model.kinds import is_uuid
from vfioctl.vgpu.model.vgpu import Definition, VgpuType


class OwnDefinition(Value):
    """A definition in vfioctl's format: the number of VFs of a PF, or the vGPU type of one VF."""

    version: int = Field(default=1, ge=1, le=1)
    device: PciAddress = Field(description="the PF that gets VFs, or the VF that gets a type")
    card: PciAddress = Field(description="the PF")
    identity: str = Field(
        default="",
        pattern="^([0-9a-f]{4}(:[0-9a-f]{4}){3}:[0-9a-f]{6})?$",
        description="ids and class of the PF; empty in definitions of earlier releases",
    )
    vfs: int | None = Field(default=None, ge=1, le=65_535)
    type: str | None = Field(
        default=None, pattern="^[0-9]{1,9}$", description="type id, which may change with the driver"
    )
    name: str | None = Field(default=None, max_length=100, description="type name, which is looked up before the id")
    parameters: dict[str, str] = Field(default_factory=dict, description="values of the vGPU's parameters, by file")

    @property
    def text(self) -> str:
        known = self.model_dump(mode="json", exclude_none=True, exclude=None if self.identity else {"identity"})
        return json.dumps(known, indent=2)


def definition_file(subject: str, parent: str) -> str:
    """The path of the definition of a vGPU, or of the VFs of a PF."""
    return f"{DEFINITIONS}/{parent}/{subject}" if is_uuid(subject) else own_definition_file(subject)


def own_definition_file(address: str) -> str:
    """The path of the definition of the type of a VF, or of the VFs of a PF."""
    return f"{OWN_DEFINITIONS}/{address}.json"


def definition_text(kind: str, parameters: Mapping[str, str]) -> str:
    """The text of a definition in mdevctl's format, for a vGPU that starts when its parent appears."""
    attributes = [{name: value} for name, value in parameters.items()]
    return json.dumps({"mdev_type": kind, "start": "auto", "attrs": attributes}, indent=2)


def vgpu_text(card: str, device: PciAddress, kind: VgpuType, parameters: Mapping[str, str], identity: str = "") -> str:
    """The text of a definition in vfioctl's format, for a VF with a type. `identity`: that of its PF."""
    name, own = kind.name[:100] or None, dict(parameters)
    return OwnDefinition(
        device=device, card=PciAddress(card), identity=identity, type=kind.id, name=name, parameters=own
    ).text


def vfs_text(physical: PciAddress, count: int, identity: str = "") -> str:
    """The text of a definition in vfioctl's format, for the VFs of a PF. `identity`: that of the PF, so that another
    device with its address gets none."""
    return OwnDefinition(device=physical, card=physical, vfs=count, identity=identity).text


def identity_in(facts: Mapping[str, Fact], card: str) -> str:
    """The identity of a PF, from the facts of a plan; empty if the card is no PCI function."""
    return str(facts[card].values.get("identity") or "") if card in facts else ""


def refuse_another(file: str, definition: OwnDefinition | None, identities: Mapping[str, object]) -> None:
    """Raise DeviceMissing if the PF of a definition is another device now. `identities`: by address."""
    known = definition.identity if definition else ""
    if definition and known and identities.get(definition.card, known) != known:
        raise DeviceMissing(
            f"{definition.card} is another device than when {file} was written: nothing is created on it",
            hint="vfioctl persist remove, if the device is gone for good",
        )


def still_defined(uuid: str, definition: Definition) -> str:
    """A sentence, without its full stop, about a definition that is left when its mediated device is removed."""
    again = "creates it again at boot" if definition.start == "auto" else "can start it again"
    return f"{uuid} stays defined in {definition.path}: mdevctl {again}"
