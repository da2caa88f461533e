"""What a change is besides drivers: power, consoles, locks, services; vGPUs and the counts of VFs. No input or output.

A setting has one value before and one after, like a binding, so that it is planned, undone and recovered the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from vfioctl.inventory.model.values import PciAddress, Subject, Uuid, Value


class SettingKind(StrEnum):
    POWER = "power"
    """`power/control`: on, so that a device on vfio-pci does not fall asleep. vfio-pci resets it as it binds."""
    D3COLD = "d3cold"
    """`d3cold_allowed`."""
    CONSOLE = "console"
    """`bind` of a vtconsole: whether the text console is drawn on the framebuffers."""
    FRAMEBUFFER = "framebuffer"
    """A firmware framebuffer, a platform device: the driver that it is bound to, or nothing."""
    LOCK = "lock"
    """NVIDIA's `unbindLock`: the driver lets nobody open the GPU any more. Gone with the binding."""
    PERSISTENCE = "persistence"
    """Of an NVIDIA GPU, by NVML: 1, 0, or `unknown`, which counts as on."""
    SERVICE = "service"
    """A systemd unit: active or inactive."""
    RESET_METHOD = "reset method"
    """`reset_method`: which ways to reset the device the kernel tries."""
    MDEV = "mdev"
    """A mediated device by its UUID: `PARENT/TYPE`, empty while there is none, or `ZOMBIE`."""
    VGPU_TYPE = "vGPU type"
    """NVIDIA's `current_vgpu_type` of a VF: an id, or 0."""
    PARAMETER = "parameter"
    """A file of a vGPU's own, as `nvidia/vgpu_params`. Gone with the vGPU."""
    VF_COUNT = "VFs"
    """`sriov_numvfs`, as the links to the VFs tell it: to read the file may block."""
    AUTOPROBE = "autoprobe"
    """`sriov_drivers_autoprobe`: whether new VFs find drivers by themselves."""
    NVIDIA_VFS = "NVIDIA VFs"
    """The number of VFs of a GPU on nvidia: all or none, by NVIDIA's sriov-manage."""
    PROFILE = "profile"
    """What a PF or a VF may take of an xe card."""
    KEPT = "definition"
    """A file that has a vGPU, or VFs, made again at boot: its text, empty while there is none."""


ZOMBIE = "zombie"
"""Of a mediated device that was removed while it was open: hidden, and its share still taken."""
NO_VGPU = ("", "0")
VGPU_KINDS = frozenset(
    {
        SettingKind.MDEV,
        SettingKind.VGPU_TYPE,
        SettingKind.PARAMETER,
        SettingKind.VF_COUNT,
        SettingKind.AUTOPROBE,
        SettingKind.NVIDIA_VFS,
        SettingKind.PROFILE,
        SettingKind.KEPT,
    }
)
"""The kinds that are changes in themselves, and serve no change of a driver."""
VF_COUNTS = (SettingKind.VF_COUNT, SettingKind.NVIDIA_VFS)
DEFINITIONS = "/etc/mdevctl.d"
KEPT_HERE = "/etc/vfioctl/vgpu.d"

# What each kind may name: a plan from elsewhere cannot have anything else written.
_OF_THE_FUNCTION: Mapping[SettingKind, str] = {
    SettingKind.POWER: "/sys/bus/pci/devices/{}/power/control",
    SettingKind.D3COLD: "/sys/bus/pci/devices/{}/d3cold_allowed",
    SettingKind.LOCK: "/proc/driver/nvidia/gpus/{}/unbindLock",
    SettingKind.PERSISTENCE: "{}",
    SettingKind.RESET_METHOD: "/sys/bus/pci/devices/{}/reset_method",
    SettingKind.MDEV: "{}",
    SettingKind.VGPU_TYPE: "/sys/bus/pci/devices/{}/nvidia/current_vgpu_type",
    SettingKind.VF_COUNT: "/sys/bus/pci/devices/{}/sriov_numvfs",
    SettingKind.AUTOPROBE: "/sys/bus/pci/devices/{}/sriov_drivers_autoprobe",
    SettingKind.NVIDIA_VFS: "{}",
}
_NOT_ITS_OWN = "driver|firmware_node|iommu|iommu_group|mdev_type|of_node|power|subsystem|vfio-dev"
"""Folders of any mediated device that are the kernel's, or lead away from it: no parameters of a vGPU."""
_BELOW_THE_SUBJECT: Mapping[SettingKind, str] = {
    SettingKind.PARAMETER: rf"/sys/bus/(mdev/devices/UUID/(?!({_NOT_ITS_OWN})/)[a-z0-9_-]+|pci/devices/ADDRESS/nvidia)"
    r"/(?!current_vgpu_type$)[a-z0-9_]+",
    SettingKind.PROFILE: r"/sys/bus/pci/devices/ADDRESS/sriov_admin/(pf|vf[1-9][0-9]{0,3})/profile/[a-z_]+",
    SettingKind.KEPT: rf"({DEFINITIONS}/[A-Za-z0-9][A-Za-z0-9:._-]*/UUID|{KEPT_HERE}/ADDRESS\.json)",
}
_NOBODY = "(?!)"  # matches nothing
_OF_THE_HOST: Mapping[SettingKind, str] = {
    SettingKind.CONSOLE: r"/sys/class/vtconsole/vtcon[0-9]{1,3}/bind",
    SettingKind.FRAMEBUFFER: r"[a-z][a-z0-9-]{0,31}\.[0-9]{1,3}",
    SettingKind.SERVICE: r"[A-Za-z0-9][A-Za-z0-9_.@\\:-]{0,200}\.service",
}
_LONGEST_PATH = 255
_PLAIN_VALUE = "[a-z0-9_ -]{0,64}"
_VALUES: Mapping[SettingKind, str] = {
    SettingKind.FRAMEBUFFER: "|(efi|simple|vesa)-framebuffer|simpledrm|vga16fb",  # as kernel/seam.py has them
    SettingKind.MDEV: rf"|{ZOMBIE}|[A-Za-z0-9][A-Za-z0-9:._-]{{0,63}}/[A-Za-z0-9][A-Za-z0-9._+-]{{0,63}}",
    SettingKind.VGPU_TYPE: "[0-9]{1,9}",
    SettingKind.VF_COUNT: "[0-9]{1,5}",
    SettingKind.NVIDIA_VFS: "[0-9]{1,5}",
    SettingKind.AUTOPROBE: "|[01]",
    SettingKind.PARAMETER: "[ -~]{0,1000}",
    SettingKind.KEPT: r"[ -~\t\n]{0,65536}",  # also what somebody else has written there
}


class Reading(Value):
    """A setting as it is now. `value` is None where it could not be read."""

    kind: SettingKind
    name: str = Field(description="a file, a PCI address, a platform device or a unit, as the kind has it")
    address: PciAddress = Field(description="the function for whose sake it is looked at")
    value: str | None

    @property
    def key(self) -> tuple[SettingKind, str]:
        return self.kind, self.name


class Setting(Value):
    """A setting before and after a change. `during`: a value that it has only while the change is under way."""

    kind: SettingKind
    name: str
    address: Subject = Field(description="the function, or the mediated device, that it concerns")
    before: str
    after: str
    during: str | None = None

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if not self._is_named_rightly():
            raise ValueError(f"not the name of a {self.kind} of {self.address}: {self.name[:80]!r}")
        values = (self.before, self.after, self.during or "")
        form = _VALUES.get(self.kind, _PLAIN_VALUE)
        if not all(text == "" or re.fullmatch(form, text) for text in values):
            raise ValueError(f"not the value of a {self.kind}")
        return self

    def _is_named_rightly(self) -> bool:
        if self.kind in _OF_THE_FUNCTION:
            of_its_kind = isinstance(self.address, Uuid) == (self.kind == SettingKind.MDEV)
            return of_its_kind and self.name == _OF_THE_FUNCTION[self.kind].format(self.address)
        if self.kind in _BELOW_THE_SUBJECT:
            form = self._with_subject(_BELOW_THE_SUBJECT[self.kind])
            how = re.ASCII | (re.IGNORECASE if self.kind == SettingKind.KEPT else 0)  # as whoever wrote it spelt it
            return len(self.name) < _LONGEST_PATH and re.fullmatch(form, self.name, how) is not None
        return re.fullmatch(_OF_THE_HOST[self.kind], self.name, re.ASCII) is not None

    def _with_subject(self, form: str) -> str:
        """The form with the subject in its place; a UUID is no address, and the other way round."""
        subject, is_uuid = re.escape(self.address), isinstance(self.address, Uuid)
        uuid, address = (subject, _NOBODY) if is_uuid else (_NOBODY, subject)
        return form.replace("UUID", uuid).replace("ADDRESS", address)

    @property
    def key(self) -> tuple[SettingKind, str]:
        return self.kind, self.name

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done. vfio-pci sets `power/control` as it binds, whatever it was before."""
        return self.before == self.after and self.during is None and self.kind != SettingKind.POWER

    @property
    def is_vgpu(self) -> bool:
        """Whether it is a vGPU itself."""
        return self.kind in (SettingKind.MDEV, SettingKind.VGPU_TYPE)

    @property
    def makes(self) -> bool:
        """Whether a vGPU is made by it."""
        return self.is_vgpu and self.after not in NO_VGPU and self.before in NO_VGPU

    @property
    def removes(self) -> bool:
        """Whether a vGPU goes by it."""
        return self.is_vgpu and self.after in NO_VGPU and self.before not in NO_VGPU

    def back_from(self, now: str) -> Setting:
        """From what it is now to what it was. VFs that come back find no drivers either."""
        during = self.during if self.kind == SettingKind.AUTOPROBE else None
        return Setting(
            kind=self.kind, name=self.name, address=self.address, before=now, after=self.before, during=during
        )
