"""Parses a PCI expansion ROM: its images, the devices that they are for, and their faults.

May not do input or output. The bytes are untrusted: invalid data is reported as a fault, never as an exception.
Sources: PCI Firmware Specification 3.3, chapter 5 (headers, PCIR); UEFI 2.10, 14.4.18 (the EFI image's header)."""

from __future__ import annotations

import struct
from collections.abc import Iterator

from pydantic import Field

from vfioctl.core.value import Value
from vfioctl.inventory.model.functions import Function
from vfioctl.inventory.model.values import PciAddress

BLOCK = 512
MOST_IMAGES = 32
"""Maximum number of images. Real ROMs have up to four; more would be random data."""

_SIGNATURE, _PCIR, _NVGI, _EFI_SIGNATURE = b"\x55\xaa", b"PCIR", b"NVGI", 0x0EF1
_X86, _EFI = 0, 3
_KINDS = {_X86: "x86", 1: "Open Firmware", 2: "PA-RISC", _EFI: "EFI", 0xE0: "NVIDIA"}
_MACHINES = {0x014C: "ia32", 0x0200: "ia64", 0x8664: "x64", 0xAA64: "aarch64", 0x5064: "riscv64", 0x6264: "loongarch64"}
_LIST_REVISION = 3
"""Revision of the PCIR structure from which the former VPD pointer points to a device list."""
_MOST_DEVICES = 256


class Image(Value):
    """One image of a ROM: code for one kind of firmware."""

    offset: int = Field(description="bytes from the beginning of the ROM")
    size: int = Field(description="bytes, as the image says")
    kind: str = Field(description="x86 (what a BIOS runs), EFI, Open Firmware, PA-RISC, NVIDIA, or its code type")
    machine: str | None = Field(None, description="of an EFI image: x64, aarch64, ...")
    vendor_id: str
    device_id: str
    other_devices: tuple[str, ...] = Field((), description="device ids that it is for besides")
    class_code: str
    last: bool = Field(description="whether it says that no image follows")
    checksum_holds: bool | None = Field(None, description="of an x86 image; others have none")


class Rom(Value):
    """The expansion ROM of a function."""

    address: PciAddress
    size: int = Field(description="bytes")
    sha256: str
    images: tuple[Image, ...]
    faults: tuple[str, ...] = Field((), description="why a guest's firmware would not run it, or not for this device")
    remarks: tuple[str, ...] = Field((), description="what is worth knowing, and no fault")

    @property
    def is_sound(self) -> bool:
        return not self.faults


def parse_rom(data: bytes, function: Function) -> Rom:
    """Parse the bytes of a ROM and check them for this function. Never raises."""
    import hashlib

    # NVIDIA's tools put their own header (NVGI) before the first image
    start = next((at for at in range(0, len(data), BLOCK) if _structure(data, at) is not None), None)
    images = tuple(_images(data, start)) if start is not None else ()
    faults = [fault for image in images for fault in _image_faults(image, data, function)]
    if not images:
        begins = data[:4].hex(" ") or "nothing"
        faults = [f"there is no PCI image in it: no 55 aa with a PCIR structure (it begins with {begins})"]
    return Rom(
        address=function.address,
        size=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        images=images,
        faults=tuple(faults),
        remarks=tuple(_remarks(data, images)),
    )


def _structure(data: bytes, at: int) -> int | None:
    """Return the offset of the PCIR structure of the image at `at`; None if there is no image."""
    if data[at : at + 2] != _SIGNATURE or at + 0x1A > len(data):
        return None
    start = at + _word(data, at + 0x18)
    return start if data[start : start + 4] == _PCIR and start + 0x18 <= len(data) else None


def _images(data: bytes, at: int) -> Iterator[Image]:
    for _ in range(MOST_IMAGES):
        start = _structure(data, at)
        if start is None:
            return
        yield (image := _image(data, at, start))
        if image.last or not image.size:
            return
        at += image.size


def _image(data: bytes, at: int, start: int) -> Image:
    vendor, device, pointer = struct.unpack_from("<3H", data, start + 4)
    size, code_type = _word(data, start + 0x10) * BLOCK, data[start + 0x14]
    listed = _devices(data, start + pointer) if data[start + 0x0C] >= _LIST_REVISION and pointer else ()
    return Image(
        offset=at,
        size=size,
        kind=_KINDS.get(code_type, f"code type 0x{code_type:02x}"),
        machine=_machine(data, at) if code_type == _EFI else None,
        vendor_id=f"{vendor:04x}",
        device_id=f"{device:04x}",
        other_devices=tuple(f"{other:04x}" for other in listed if other != device),
        class_code=data[start + 0x0D : start + 0x10][::-1].hex(),
        last=bool(data[start + 0x15] & 0x80),
        checksum_holds=_adds_up(data[at : at + size]) if code_type == _X86 else None,
    )


def _devices(data: bytes, at: int) -> Iterator[int]:
    for place in range(at, min(at + 2 * _MOST_DEVICES, len(data) - 1), 2):
        if not (device := _word(data, place)):
            return
        yield device


def _machine(data: bytes, at: int) -> str | None:
    if struct.unpack_from("<I", data, at + 4)[0] != _EFI_SIGNATURE:
        return None
    machine = _word(data, at + 0x0A)
    return _MACHINES.get(machine, f"machine 0x{machine:04x}")


def _adds_up(image: bytes) -> bool:
    """Return whether the sum is 0 over the initialisation size (byte 2, firmware) or the whole image (ROM editors)."""
    return bool(image) and (sum(image) % 256 == 0 or sum(image[: image[2] * BLOCK] or b"\1") % 256 == 0)


def _word(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 2], "little")


def _image_faults(image: Image, data: bytes, function: Function) -> Iterator[str]:
    name = f"the {image.kind} image at 0x{image.offset:x}"
    if not image.size:
        yield f"{name} says that it has no bytes"
    elif image.offset + image.size > len(data):
        yield f"{name} has {image.size} bytes, of which {len(data) - image.offset} are there"
    elif image.checksum_holds is False:
        added = sum(data[image.offset : image.offset + image.size]) % 256
        yield f"{name} has a wrong checksum: its bytes add up to 0x{added:02x}, not to 0"
    if image.kind == _KINDS[_EFI] and image.machine is None:
        yield f"{name} lacks the EFI signature 0x0ef1"
    known = (image.device_id, *image.other_devices)
    if image.vendor_id != function.vendor_id or function.device_id not in known:
        ids = f"{function.vendor_id}:{function.device_id}"
        yield f"{name} is for {image.vendor_id}:{image.device_id}, and the device is {ids}"


def _remarks(data: bytes, images: tuple[Image, ...]) -> Iterator[str]:
    if not images:
        return
    first, last = images[0], images[-1]
    if first.offset:
        nvidia = " (NVIDIA's NVGI header)" if data.startswith(_NVGI) else ""
        yield f"{first.offset} bytes come before the first image{nvidia}: a guest needs a ROM without them"
    if (rest := len(data) - last.offset - last.size) > 0:
        yield f"{rest} bytes come after the last image"
    if not last.last:
        yield "no image says that it is the last one"
    kinds = {image.kind for image in images}
    if first.class_code.startswith("03") and _KINDS[_EFI] not in kinds:
        yield "no EFI image: a guest with UEFI firmware has no picture before its own driver is at work"
