"""PCI addresses, the subjects of changes, and numbers as C writes them. May not do input or output, nor import pydantic
before one of its models holds such a value."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from vfioctl.errors import BadAddress
from vfioctl.units import UUID, Uuid, text_schema

if TYPE_CHECKING:  # listings do without
    from pydantic_core import CoreSchema

# The kernel prints a domain with at least four digits, and more for VMD and some ARM hosts.
_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])", re.ASCII)
_DIGITS = 20
_CANONICAL = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)  # as in nearly all of sysfs


class PciAddress(str):
    """The address of one PCI function as the kernel writes it: ``0000:41:00.0``. Raises BadAddress for other text."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if _CANONICAL.fullmatch(text):
            return super().__new__(cls, text)
        match = _ADDRESS.fullmatch(text) if len(text) <= 16 else None
        if match is None or int(match[3], 16) > 0x1F:
            raise BadAddress(f"not a PCI address: {text[:40]!r}", hint="write it as 0000:41:00.0 or 41:00.0")
        domain, bus, device = (int(part or "0", 16) for part in match.groups()[:3])
        return super().__new__(cls, f"{domain:04x}:{bus:02x}:{device:02x}.{match[4]}")

    @property
    def slot(self) -> str:
        """``domain:bus:device``, which all functions of one card share."""
        return self[:-2]

    @property
    def order(self) -> tuple[int, str]:
        """The sort key: numeric by domain, because text order puts domain 10000 before 0000:02."""
        return len(self), self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return text_schema(known_address)


Subject = PciAddress | Uuid
"""The subject of a change: a function or a mediated device."""


def subject(text: str) -> Subject:
    """Return the PCI address or UUID in `text`. Raises BadAddress."""
    return Uuid(text) if UUID.fullmatch(text) else PciAddress(text)


@lru_cache(maxsize=65_536)  # the same bridges and PFs are named thousands of times in one inventory
def known_address(text: str) -> PciAddress:
    """Return the PCI address in `text`, the same object each time. Raises BadAddress."""
    return PciAddress(text)


def any_number(text: str | None) -> int | None:
    """Return a number as strtoul(3) and libvirt read it: decimal, 0x hexadecimal, octal with a leading 0; else None."""
    digits = (text or "").lstrip().lower()
    if len(digits) > _DIGITS or not digits.isascii() or not digits.isalnum():
        return None
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    try:
        return int(digits, base)
    except ValueError:
        return None


def is_gpu_class(code: str) -> bool:
    """Return whether a PCI class, such as 030200, is that of a display controller or a processing accelerator."""
    return code.startswith(("03", "1200"))
