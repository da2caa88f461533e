"""Readers that run in a worker. May not import models, which the worker would have to import too."""

from __future__ import annotations

from vfioctl.errors import KernelRefused
from vfioctl.inventory.probe.pci import Facts, read_function
from vfioctl.kernel.lenient import text_of
from vfioctl.kernel.protocol import FileReader, Processes, Reader, per_subject

VTCONSOLES = "/sys/class/vtconsole"
_NOTHING_THERE = ("ENXIO", "ENOMEDIUM")
_WANTED = frozenset({"modalias", "driver_override"})


@per_subject
def read_again(kernel: Reader, address: str) -> Facts | None:
    """Return a function's facts; None if it is gone."""
    try:
        return read_function(kernel, address, _WANTED)
    except (KernelRefused, ValueError):
        return None


@per_subject
def is_drawn(kernel: FileReader, console: str) -> bool:
    """Return whether a vtconsole is on framebuffers.

    The read takes the console lock (show_bind, drivers/tty/vt/vt.c).
    """
    home = f"{VTCONSOLES}/{console}"
    return "frame buffer" in text_of(kernel, f"{home}/name") and text_of(kernel, f"{home}/bind") == "1"


@per_subject
def why_claimed(kernel: Processes, number: str) -> str:
    """Return why a block device is in use; empty if it is free. An unknown state counts as in use."""
    try:
        return "in use by the kernel: ZFS, another mount namespace, ..." if kernel.claimed(number) else ""
    except KernelRefused as error:
        return (
            "" if error.symbol in _NOTHING_THERE else f"possibly in use: the kernel does not report it ({error.symbol})"
        )
