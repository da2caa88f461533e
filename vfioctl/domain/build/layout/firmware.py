"""Sizes the guest's address space, so that its firmware finds room for the BARs. Pure.

OVMF gives 64-bit BARs an eighth of the guest's physical addresses (OvmfPkg, PlatformDynamicMmioWindow), and q35 has a
hole for them whose size is a property. Large GPUs need both to be larger than their defaults.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from vfioctl.domain.document.architecture import end_of_hole, most_memory
from vfioctl.domain.model.layout import Choice, Device
from vfioctl.errors import NoCapacity
from vfioctl.inventory.model.machine import Processor

GIB = 1 << 30
DEFAULT_HOLE = 32 * GIB
"""q35's hole without a setting (QEMU, hw/pci-host/q35.c)."""
_MARGIN = GIB
_WINDOW = 8


class AddressSpace(NamedTuple):
    """The size of the 64-bit hole (bytes; 0: the default), and whether the guest has the host's address width."""

    hole: int
    wide: bool
    choices: tuple[Choice, ...]


def address_space(devices: Sequence[Device], processor: Processor, memory: int) -> AddressSpace:
    """Return what the BARs of the devices need: their sum and 1 GiB, rounded up to a power of two.

    `memory`: the guest's, in bytes. Raises NoCapacity if the CPU cannot address both.
    """
    bars = sum(device.prefetchable for device in devices)
    if not processor.is_x86 or not bars:
        return AddressSpace(0, wide=False, choices=())
    hole = 1 << (bars + _MARGIN - 1).bit_length()
    if hole <= DEFAULT_HOLE:
        why = f"the BARs take {_gib(bars)}, which fits into the default of {_gib(DEFAULT_HOLE)}"
        return AddressSpace(0, wide=False, choices=(Choice("64-bit PCI hole", "the default", why),))
    bits = processor.address_bits
    if bits is not None:
        _refuse_too_far(memory, hole, bits)
    weaker = ""
    if bits is not None and (1 << bits) // _WINDOW < hole:
        weaker = f"older OVMF offers {_gib((1 << bits) // _WINDOW)} for BARs with {bits} address bits: use one of 2026"
    return AddressSpace(
        hole,
        wide=True,
        choices=(
            Choice("64-bit PCI hole", _gib(hole), f"the BARs take {_gib(bars)}; with 1 GiB more, to a power of two"),
            Choice(
                "physical addresses",
                "as wide as the host's" + (f" ({bits} bits)" if bits else ""),
                "OVMF gives BARs a part of the guest's address space, and QEMU's default of 40 bits is too small",
                weaker=weaker,
            ),
        ),
    )


def _refuse_too_far(memory: int, hole: int, bits: int) -> None:
    if end_of_hole(memory, hole) > 1 << bits:
        most = most_memory(hole, bits)
        raise NoCapacity(
            f"the BARs need a 64-bit PCI hole of {_gib(hole)}, which ends above what this CPU addresses"
            f" ({bits} bits, {_gib(1 << bits)})",
            hint=f"ask for at most {most // GIB}GiB with --memory, or for fewer devices"
            if most
            else "ask for fewer devices, or make their BARs smaller in the host's firmware setup (Resizable BAR)",
        )


def _gib(size: int) -> str:
    return f"{size / GIB:g} GiB" if size >= GIB else f"{size / (1 << 20):.3g} MiB"
