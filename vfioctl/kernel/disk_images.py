"""Says which file a disk image is, and on which other one it is based. Reads regular files only, and not much of them.

Source: QEMU's docs/interop/qcow2.txt.
"""

from __future__ import annotations

import os
import stat

from vfioctl.kernel.protocol import DiskImage
from vfioctl.kernel.untrusted_files import read_start
from vfioctl.untrusted_text import parse_json

_MAGIC, _HEADER, _LONGEST_NAME = b"QFI\xfb", 1 << 16, 1023


def disk_image(path: str) -> DiskImage:
    """Return the image at a path of this machine, which need not exist."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return DiskImage(os.path.realpath(path.replace("\0", "")))
    except OSError as error:
        return DiskImage(os.path.realpath(path), unknown=str(error.strerror))
    if not stat.S_ISREG(status.st_mode):
        return DiskImage(f"device {status.st_rdev}" if status.st_rdev else os.path.realpath(path))
    file = f"file {status.st_dev} {status.st_ino}"
    try:
        backing = _backing(read_start(path, _HEADER))
    except OSError as error:
        return DiskImage(file, unknown=str(error.strerror))
    except EOFError:
        return DiskImage(file, unknown="its header is damaged")
    folder = os.path.dirname(os.path.realpath(path))
    return DiskImage(file, os.path.join(folder, backing) if backing else "")


def _backing(header: bytes) -> str:
    """Return the name in the header of a qcow2 image; empty if it names none, or one that is no file.

    Raises EOFError if the name is not where it should be.
    """
    offset, size = int.from_bytes(header[8:16]), int.from_bytes(header[16:20])
    if not header.startswith(_MAGIC) or not offset:
        return ""
    if size > _LONGEST_NAME or offset + size > len(header):
        raise EOFError
    name = header[offset : offset + size].decode(errors="replace")
    if name.startswith("json:"):
        return _named_in(name.removeprefix("json:"))
    return "" if "://" in name or "\0" in name else name.removeprefix("file:")


def _named_in(text: str) -> str:
    try:
        options = parse_json(text)
        file = options.get("file", options)
        name = options.get("file.filename") or (file.get("filename") if isinstance(file, dict) else "")
    except (ValueError, AttributeError, RecursionError):
        return ""
    return name if isinstance(name, str) and "://" not in name and "\0" not in name else ""
