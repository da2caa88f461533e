"""The domain that is compared: its document, and how commands name it. May not do input or output."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from vfioctl.errors import BadSpec
from vfioctl.units import format_cpu_list, parse_cpu_list

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

MOST = 8192
"""No guest has more vCPUs, and no host more CPUs."""


class Subject(NamedTuple):
    """A running domain."""

    root: Element
    """Its document as it runs."""
    name: str
    """Quoted for the shell."""
    virsh: str
    """The command, with the libvirt that has the domain."""


def numbers(text: str) -> frozenset[int] | None:
    """Return the numbers of a list, in the kernel's form or in libvirt's (0-7,^3); None if it names none."""
    parts = [part.strip() for part in text.split(",")]
    try:
        without = parse_cpu_list(",".join(part[1:] for part in parts if part.startswith("^")))
        included = parse_cpu_list(",".join(part for part in parts if part[:1] != "^"))
    except BadSpec:
        return None
    return frozenset(included) - frozenset(without) or None


def listed(values: Iterable[int] | None) -> str:
    """Return numbers in the kernel's form; empty for None."""
    return format_cpu_list(values or ())


def number(text: str | None) -> int | None:
    """Return a number that is not negative and not long; None for anything else."""
    digits = (text or "").strip()
    return int(digits) if digits.isascii() and digits.isdecimal() and len(digits) < 19 else None
