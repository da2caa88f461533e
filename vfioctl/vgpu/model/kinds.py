"""The kinds of resources of vGPUs and VFs, their files, and facts of a PF for plans. May not do input or output."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vfioctl.kernel.host_paths import MDEV_DEVICES
from vfioctl.kernel.protocol import PCI_DEVICES
from vfioctl.units import UUID

if TYPE_CHECKING:
    from vfioctl.core.change import Change, Key
    from vfioctl.inventory.model.functions import Function

MDEV = "mdev"
"""A mediated device, named by its UUID. Value: `PARENT/TYPE`, empty when it does not exist, or `ZOMBIE`."""
VGPU_TYPE = "vGPU type"
"""NVIDIA's `current_vgpu_type` of a VF: a type id, or 0 when the VF is no vGPU."""
KEPT = "kept vGPU"
"""A vGPU that exists, and that vfioctl takes over as it is. Value: `PARENT/TYPE`; a VF is its own parent."""
PARAMETER = "parameter"
"""A sysfs file of one vGPU, such as `nvidia/vgpu_params`. It is removed with the vGPU."""
VF_COUNT = "VFs"
"""`sriov_numvfs`, counted by the `virtfn` links, because reading the file may block."""
AUTOPROBE = "autoprobe"
"""`sriov_drivers_autoprobe`: whether the kernel binds drivers to new VFs."""
NVIDIA_VFS = "NVIDIA VFs"
"""The number of VFs of a GPU on nvidia: all or none, by NVIDIA's sriov-manage."""
PROFILE = "profile"
"""A profile value of the PF or a VF of an xe card."""
DEFINITION = "definition"
"""A file from which a vGPU, or VFs, are created at boot. Value: its text, empty when there is no file."""
BINDING = "binding"
"""The driver that a function is bound to; a resource of the subsystem `binding`."""

ZOMBIE = "zombie"
"""A mediated device that was removed while it was open: hidden, but still using its share of the GPU."""
VGPUS, VF_COUNTS = (MDEV, VGPU_TYPE), (VF_COUNT, NVIDIA_VFS)
_NONE = ("", "0")

CHECK = "vGPUs"
"""The check after the last step. Its subjects are the cards of the plan."""
TYPE_NAMES = "vGPU types"
"""The kind of facts that hold the names of the types of a card, by id."""


def is_uuid(text: str) -> bool:
    """Whether `text` is a UUID in lower case, as the kernel names mediated devices."""
    return UUID.fullmatch(text) is not None and text == text.lower()


def creates(change: Change) -> bool:
    """Whether the change creates a vGPU."""
    return change.kind in VGPUS and change.before in _NONE and change.after not in _NONE


def removes(change: Change) -> bool:
    """Whether the change removes a vGPU."""
    return change.kind in VGPUS and change.before not in _NONE and change.after in _NONE


def keeps(change: Change) -> bool:
    """Whether the change takes over a vGPU as it is."""
    return change.kind == KEPT


def changes_vfs(change: Change) -> bool:
    """Whether the change sets another number of VFs."""
    return change.kind in VF_COUNTS and change.before != change.after


def place_and_type(change: Change) -> tuple[str, str]:
    """The parent that the change creates a vGPU on, and the id of its type."""
    if change.kind == VGPU_TYPE:
        return change.subject, change.after
    parent, _, kind = change.after.partition("/")
    return parent, kind


def type_file(address: str) -> str:
    """The sysfs file with the vGPU type of a VF."""
    return f"{PCI_DEVICES}/{address}/nvidia/current_vgpu_type"


def vgpu_key(subject: str) -> Key:
    """The key of the resource of a vGPU. `subject`: the UUID of a mediated device, or the address of a VF."""
    return (VGPU_TYPE, type_file(subject)) if ":" in subject else (MDEV, subject)


def own_folder(subject: str) -> str:
    """The sysfs directory of a vGPU, which contains its parameters."""
    return f"{PCI_DEVICES if ':' in subject else MDEV_DEVICES}/{subject}"


def count_file(address: str) -> str:
    """The sysfs file with the number of VFs of a PF."""
    return f"{PCI_DEVICES}/{address}/sriov_numvfs"


def autoprobe_file(address: str) -> str:
    """The sysfs file that controls whether the kernel binds drivers to new VFs of a PF."""
    return f"{PCI_DEVICES}/{address}/sriov_drivers_autoprobe"


class PhysicalFunction(NamedTuple):
    """Facts of a PF that are not in the inventory."""

    total: int
    autoprobe: str
    definition: str
    """The text of vfioctl's definition of its VFs; empty when there is none."""
    gpu_instances: bool = False
    """Whether MIG is enabled on this GPU, or, if that is unknown, on any NVIDIA GPU of the host."""


def may_be_pf(function: Function) -> bool:
    """Return whether it is a GPU that may have VFs: also one that was not asked, or not read whole."""
    return function.is_gpu and (function.sriov_totalvfs is not None or bool(function.unknown or function.mark))
