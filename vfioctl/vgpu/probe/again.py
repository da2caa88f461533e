"""A few vGPUs, counts of VFs and definitions again, as plans speak of them. Reads only."""

from __future__ import annotations

import re

from vfioctl.core.setting import ZOMBIE, Setting, SettingKind
from vfioctl.errors import KernelRefused
from vfioctl.kernel.protocol import PCI_DEVICES, Reader

_MDEVS = "/sys/bus/mdev/devices"
_PARENTS = "/sys/class/mdev_bus"

NEVER_BLOCKS = frozenset(
    {
        SettingKind.MDEV,
        SettingKind.VF_COUNT,
        SettingKind.NVIDIA_VFS,
        SettingKind.AUTOPROBE,
        SettingKind.KEPT,
    }
)
"""Those that links, or files of no driver's, tell."""


def vgpu_again(kernel: Reader, setting: Setting) -> str | None:
    """Its value now; None where it cannot be read, or its file has gone."""
    try:
        return _value(kernel, setting)
    except KernelRefused:
        return None


def _value(kernel: Reader, setting: Setting) -> str:
    kind, name = setting.kind, setting.name
    if kind == SettingKind.MDEV:
        return _mdev(kernel, setting)
    if kind in (SettingKind.VF_COUNT, SettingKind.NVIDIA_VFS):
        links = kernel.directory(f"{PCI_DEVICES}/{setting.address}", (), ("virtfn",)).links
        return str(len(links))
    if kind == SettingKind.KEPT:
        return kernel.read(name) if kernel.has(name) else ""
    text = kernel.read(name).strip()
    if kind == SettingKind.PROFILE and (chosen := re.search(r"\[(\w+)\]", text)):
        return chosen[1]  # `low [normal] high`
    return text


def _mdev(kernel: Reader, setting: Setting) -> str:
    """`PARENT/TYPE`. One whose removal waits for a holder is on no bus any more, but still below its parent."""
    try:
        parent = kernel.link(f"{_MDEVS}/{setting.name}").split("/")[-2]
        return f"{parent}/{kernel.link(f'{_MDEVS}/{setting.name}/mdev_type').rpartition('/')[2]}"
    except KernelRefused as error:
        if error.symbol != "ENOENT":
            raise
    parent = (setting.before or setting.after).partition("/")[0]
    return ZOMBIE if parent and kernel.has(f"{_PARENTS}/{parent}/{setting.name}") else ""
