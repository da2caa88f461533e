"""What a change of a device's driver needs besides the driver: power, consoles, locks, services. No input or output.

A setting has one value before and one after, like a binding, so that it is planned, undone and recovered the same way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Self

from pydantic import Field, model_validator

from vfioctl.model.values import PciAddress, Value


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


# What each kind may name: a plan from elsewhere cannot have anything else written.
_OF_THE_FUNCTION: Mapping[SettingKind, str] = {
    SettingKind.POWER: "/sys/bus/pci/devices/{}/power/control",
    SettingKind.D3COLD: "/sys/bus/pci/devices/{}/d3cold_allowed",
    SettingKind.LOCK: "/proc/driver/nvidia/gpus/{}/unbindLock",
    SettingKind.PERSISTENCE: "{}",
    SettingKind.RESET_METHOD: "/sys/bus/pci/devices/{}/reset_method",
}
_OF_THE_HOST: Mapping[SettingKind, str] = {
    SettingKind.CONSOLE: r"/sys/class/vtconsole/vtcon[0-9]{1,3}/bind",
    SettingKind.FRAMEBUFFER: r"[a-z][a-z0-9-]{0,31}\.[0-9]{1,3}",
    SettingKind.SERVICE: r"[A-Za-z0-9][A-Za-z0-9_.@\\:-]{0,200}\.service",
}
_FRAMEBUFFER_DRIVERS = "|(efi|simple|vesa)-framebuffer|simpledrm|vga16fb"  # as kernel/seam.py has them


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
    address: PciAddress
    before: str
    after: str
    during: str | None = None

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if not self._is_named_rightly():
            raise ValueError(f"not the name of a {self.kind} of {self.address}: {self.name[:80]!r}")
        values = (self.before, self.after, self.during or "")
        form = _FRAMEBUFFER_DRIVERS if self.kind == SettingKind.FRAMEBUFFER else r"[a-z0-9_ -]{0,64}"
        if not all(re.fullmatch(form, text) for text in values):
            raise ValueError(f"not the value of a {self.kind}")
        return self

    def _is_named_rightly(self) -> bool:
        if self.kind in _OF_THE_FUNCTION:
            return self.name == _OF_THE_FUNCTION[self.kind].format(self.address)
        return re.fullmatch(_OF_THE_HOST[self.kind], self.name, re.ASCII) is not None

    @property
    def key(self) -> tuple[SettingKind, str]:
        return self.kind, self.name

    @property
    def idle(self) -> bool:
        """Whether nothing is to be done. vfio-pci sets `power/control` as it binds, whatever it was before."""
        return self.before == self.after and self.during is None and self.kind != SettingKind.POWER

    def back_from(self, now: str) -> Setting:
        """From what it is now to what it was."""
        return Setting(kind=self.kind, name=self.name, address=self.address, before=now, after=self.before)
