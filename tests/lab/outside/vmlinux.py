"""The kernel unpacked once, on the build machine: xz under two levels of emulation takes longer than the boot itself.

Writes one file in the cache folder.
"""

import lzma
import os
import struct
from pathlib import Path

# Documentation/x86/boot.rst, "The Real-Mode Kernel Header"
SETUP_SECTORS, PAYLOAD_OFFSET = 0x1F1, 0x248
SECTOR = 512
XZ_MAGIC = b"\xfd7zXZ"


def unpacked(kernel: Path, cache: Path) -> Path:
    """The ELF image inside a bzImage, or the bzImage itself where it is not packed with xz as Debian's are."""
    image = cache / "vmlinux"
    if image.exists() and image.stat().st_mtime_ns == kernel.stat().st_mtime_ns:
        return image
    content = kernel.read_bytes()
    offset, length = struct.unpack_from("<II", content, PAYLOAD_OFFSET)
    start = ((content[SETUP_SECTORS] or 4) + 1) * SECTOR + offset
    payload = content[start : start + length]
    if not payload.startswith(XZ_MAGIC):
        return kernel
    # a decompressor, not lzma.decompress: the size follows the stream, and is not part of it
    image.write_bytes(lzma.LZMADecompressor().decompress(payload))
    # the mark that it is this kernel's
    os.utime(image, ns=(kernel.stat().st_mtime_ns,) * 2)
    return image
