"""Kernel-side holders of a function: live vGPUs, the text console, users of the driver's module.

May not write.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.holders import Holder, HolderKind
from vfioctl.inventory.probe.readers import VTCONSOLES, is_drawn
from vfioctl.kernel.lenient import link_name, names_in, text, text_of
from vfioctl.kernel.protocol import PCI_DEVICES, PCI_DRIVERS, Descendant, Reader

_FRAMEBUFFERS = "/sys/class/graphics"
_FOREIGN = " (with --foreign if vfioctl did not create it)"
_FIRMWARE = ("efi-framebuffer", "simple-framebuffer", "vesa-framebuffer", "bootfb")
"""Platform devices of a framebuffer that the firmware has set up on the boot display (drivers/firmware/sysfb.c)."""


def mdev_holders(function: Function, below: Sequence[Descendant]) -> Iterator[Holder]:
    """Yield the function's live mdevs."""
    for device in below:
        if device.subsystem == "mdev":
            name = device.path.rpartition("/")[2]
            yield Holder(
                address=function.address,
                kind=HolderKind.MDEV,
                name=name,
                path=device.path,
                how="a live mdev",
                remedy=f"stop the guest that has it, then vfioctl vgpu remove {name}{_FOREIGN}",
            )


def vgpu_holders(kernel: Reader, function: Function) -> Iterator[Holder]:
    """Yield the vGPU on a VF with NVIDIA's vendor-specific VFIO."""
    path = f"{PCI_DEVICES}/{function.address}/nvidia/current_vgpu_type"
    if not kernel.has(path):
        return
    ((_, kind),) = kernel.survey(text, [path])
    if kind not in ("", "0"):
        yield Holder(
            address=function.address,
            kind=HolderKind.VGPU,
            name=f"vGPU type {kind}",
            path=path,
            how="a live vGPU",
            remedy=f"stop the guest that has it, then vfioctl vgpu remove {function.address}{_FOREIGN}",
        )


def console_holders(kernel: Reader, function: Function, below: Sequence[Descendant]) -> Iterator[Holder]:
    """Yield the framebuffers that show the text console."""
    own = [device.path.rpartition("/")[2] for device in below if device.subsystem == "graphics"]
    if function.boot_vga and not own:
        own = [fb for fb in names_in(kernel, _FRAMEBUFFERS) if _is_of_firmware(kernel, fb)]
    consoles = names_in(kernel, VTCONSOLES) if own else []
    for console, drawn in kernel.survey(is_drawn, consoles):
        for framebuffer in own if drawn is True else ():
            yield Holder(
                address=function.address,
                kind=HolderKind.CONSOLE,
                name=console,
                path=f"/dev/{framebuffer}",
                how="the text console",
                remedy=f"echo 0 > {VTCONSOLES}/{console}/bind",
            )


def _is_of_firmware(kernel: Reader, framebuffer: str) -> bool:
    return link_name(kernel, f"{_FRAMEBUFFERS}/{framebuffer}/device").startswith(_FIRMWARE)


def module_holders(kernel: Reader, function: Function) -> Iterator[Holder]:
    """Yield the driver's module if it is in use: by other modules, or by open files of its devices."""
    home = f"{PCI_DRIVERS}/{function.driver}/module"
    count = text_of(kernel, f"{home}/refcnt") if function.driver else ""
    if count.isdecimal() and int(count):
        users = ", ".join(names_in(kernel, f"{home}/holders"))
        yield Holder(
            address=function.address,
            kind=HolderKind.MODULE,
            name=link_name(kernel, home),
            path=f"/sys/module/{link_name(kernel, home)}",
            how=f"used {count} times" + (f" by {users}, or by open files of its devices" if users else ""),
        )
