"""What a worker reads of one subject, for modules that import models: a worker would have to import those as well."""

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
    """A function's facts; None for one that has gone from the bus."""
    try:
        return read_function(kernel, address, _WANTED)
    except (KernelRefused, ValueError):
        return None


@per_subject
def is_drawn(kernel: FileReader, console: str) -> bool:
    """Whether a vtconsole is on framebuffers.

    Reading that takes the lock of all consoles (show_bind, drivers/tty/vt/vt.c).
    """
    home = f"{VTCONSOLES}/{console}"
    return "frame buffer" in text_of(kernel, f"{home}/name") and text_of(kernel, f"{home}/bind") == "1"


@per_subject
def why_claimed(kernel: Processes, number: str) -> str:
    """Why a block device is not free; empty for one that is. What cannot be told is not taken for free."""
    try:
        return "in use by the kernel: ZFS, another mount namespace, ..." if kernel.claimed(number) else ""
    except KernelRefused as error:
        return "" if error.symbol in _NOTHING_THERE else f"in use perhaps: the kernel does not tell ({error.symbol})"
