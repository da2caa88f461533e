"""Builds PCI expansion ROMs: valid ones for hosts, and parts of invalid ones for tests. Does no input or output."""

from __future__ import annotations

import struct

BLOCK = 512
X86, OPEN_FIRMWARE, EFI, NVIDIA = 0, 1, 3, 0xE0
EFI_X64 = 0x8664
_PCIR = 0x20
"""Where the structure is in an image: after the longer of the two headers."""


def image(
    ids: str = "10de:1e04",
    class_code: str = "030000",
    *,
    code_type: int = X86,
    blocks: int = 1,
    last: bool = True,
    devices: tuple[int, ...] = (),
    body: bytes = b"",
) -> bytes:
    """One image; that of a BIOS adds up to 0."""
    vendor, device = (int(digits, 16) for digits in ids.split(":"))
    data = bytearray(blocks * BLOCK)
    data[:4] = struct.pack("<2sH", b"\x55\xaa", blocks & 0xFF)
    if code_type == EFI:
        data[4:0x0E] = struct.pack("<I3H", 0x0EF1, 0x0B, EFI_X64, 0)
    struct.pack_into("<H", data, 0x18, _PCIR)
    listed = struct.pack(f"<{len(devices) + 1}H", *devices, 0) if devices else b""
    struct.pack_into(
        "<4s4HB3s2H2BH", data, _PCIR,
        b"PCIR", vendor, device, 0x1C if devices else 0, 0x1C, 3 if devices else 0,
        bytes.fromhex(class_code)[::-1], blocks, 1, code_type, 0x80 if last else 0, 0,
    )  # fmt: skip
    rest = listed + body
    data[_PCIR + 0x1C : _PCIR + 0x1C + len(rest)] = rest
    if code_type == X86:
        data[-1] = -sum(data[:-1]) % 256
    return bytes(data)


def option_rom(ids: str, class_code: str) -> bytes:
    """A sound ROM with an image for a BIOS and one for UEFI, neither of which does anything."""
    return image(ids, class_code, last=False) + image(ids, class_code, code_type=EFI)
