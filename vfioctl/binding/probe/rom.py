"""Reads a function's expansion ROM through the kernel protocol, and explains why one does not answer. May not write.

Sources: drivers/pci/pci-sysfs.c (pci_read_rom), drivers/pci/rom.c (pci_map_rom, pci_get_rom_size), linux/ioport.h."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from vfioctl.binding.model.rom import Rom, parse_rom
from vfioctl.errors import KernelRefused, Stuck, VerifyError
from vfioctl.inventory.model.functions import Function
from vfioctl.kernel.protocol import PCI_DEVICES, Reader

_ROM_BAR = 6
_ROM_SHADOW = 0x2
"""IORESOURCE_ROM_SHADOW: the file shows the firmware's copy of the ROM in memory."""
_MEMORY_DECODED = 0x2


def explain_refusal(kernel: Reader, function: Function, error: KernelRefused) -> None:
    """Add to the error of a refused read why the ROM did not answer."""
    error.hint = _absent(kernel, function) if error.symbol == "ENOENT" else error.hint or _silent(kernel, function)
    error.facts.update(_circumstances(kernel, function))


def understood(kernel: Reader, function: Function, data: bytes) -> Rom:
    """Parse the bytes of a ROM. Raises VerifyError if no ROM answered."""
    if not data.strip(b"\xff") or not data.strip(b"\0"):
        said = f"all {len(data)} bytes are 0x{data[0]:02x}" if data else "it is empty"
        raise VerifyError(
            f"the ROM of {function.address} does not answer: {said}",
            hint=_silent(kernel, function),
            facts=_circumstances(kernel, function),
        )
    rom = parse_rom(data, function)
    if _is_shadow(kernel, function):
        copy = "this is the firmware's copy in memory, as the boot display has it; the card's own ROM may differ"
        rom = rom.model_copy(update={"remarks": (*rom.remarks, copy)})
    return rom


def _absent(kernel: Reader, function: Function) -> str:
    if function.is_vf:
        return f"a virtual function has no ROM of its own; that of its PF {function.physfn} is the card's"
    if not any(bar.index == _ROM_BAR for bar in function.bars):
        return "the function has no expansion ROM: it has no BAR for one, or got no room for it from the firmware"
    return f"the function has a BAR for an expansion ROM, but {kernel.description} has no file `rom` for it"


def _silent(kernel: Reader, function: Function) -> str:
    return "; ".join(_reasons(kernel, function))


def _reasons(kernel: Reader, function: Function) -> Iterator[str]:
    home, header = f"{PCI_DEVICES}/{function.address}", _header(kernel, function)
    state = function.power_state or "unknown"
    if header and not header.strip(b"\xff"):
        yield "the device answers nothing at all: it has fallen off the bus or is switched off; reboot"
        return
    if state.startswith("D3"):
        yield f"the device sleeps ({state}): echo on > {home}/power/control, and try again"
        return
    if header and not header[4] & _MEMORY_DECODED:
        remedy = f"{function.driver} has it: unbind it first" if function.driver else f"echo 1 > {home}/enable"
        yield f"the device does not answer to its memory addresses; {remedy}, and try again"
        return
    if _is_shadow(kernel, function):
        yield "it was the boot display, and the firmware has left no copy of its ROM: start with another display"
        return
    yield f"its power state is {state}; the kernel log says what was read in place of 55 aa"
    if function.driver:
        yield f"some drivers switch the ROM off: try again with the device unbound from {function.driver}"
    yield "some cards show their ROM only on a machine that has another boot display"


def _circumstances(kernel: Reader, function: Function) -> Mapping[str, object]:
    header = _header(kernel, function)
    return {
        "power_state": function.power_state,
        "driver": function.driver,
        "boot_vga": function.boot_vga,
        "shadow": _is_shadow(kernel, function),
        "memory_decoded": bool(header[4] & _MEMORY_DECODED) if header else None,
    }


def _header(kernel: Reader, function: Function) -> bytes:
    try:
        header = kernel.config(function.address)
    except (KernelRefused, Stuck):
        return b""
    return header if len(header) > _MEMORY_DECODED + 2 else b""


def _is_shadow(kernel: Reader, function: Function) -> bool:
    try:
        lines = kernel.read(f"{PCI_DEVICES}/{function.address}/resource").splitlines()
        return bool(int(lines[_ROM_BAR].split()[2], 16) & _ROM_SHADOW)
    except (KernelRefused, IndexError, ValueError):
        return False
