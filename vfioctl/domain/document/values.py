"""Reads values of a domain's XML: numbers, sets of CPUs, sizes, PCI addresses and controllers. Total: bad text is None.
White space is allowed where libvirt allows it: before a number, not behind it or about a unit (virStrToLong_ui), and on
both sides of the numbers of a set (virBitmapParse)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple
from xml.etree.ElementTree import Element

from vfioctl.inventory.model.values import any_number
from vfioctl.units import format_cpu_list, unit_bytes

MOST_CPUS = 16384
"""libvirt's length of a mask of CPUs or nodes."""
_MOST_NAMED = 4 * MOST_CPUS
_DIGITS, _MOST_SHOWN = 20, 6
REAL_TIME = ("fifo", "rr")
"""The schedulers under which a vCPU runs before all other threads of its CPU."""
_EXPANDERS = ("pci-expander-bus", "pcie-expander-bus")
_HEXADECIMAL = frozenset("0123456789abcdefABCDEF")


class GuestAddress(NamedTuple):
    """The PCI address of a device in the guest. `bus`: the index of a controller."""

    domain: int
    bus: int
    slot: int
    function: int

    def __str__(self) -> str:
        return f"{self.domain:04x}:{self.bus:02x}:{self.slot:02x}.{self.function:x}"

    @property
    def is_empty(self) -> bool:
        """Whether libvirt takes it for no address, and chooses one."""
        return not (self.domain or self.bus or self.slot)


@dataclass(frozen=True)
class PciController:
    """A PCI controller. `index`: None if libvirt chooses it. `address`: where it is plugged in, likewise."""

    element: Element
    index: int | None
    model: str
    address: GuestAddress | None

    @property
    def is_expander(self) -> bool:
        return self.model in _EXPANDERS

    @property
    def bus_number(self) -> int | None:
        """Of an expander bus in the guest; None if libvirt chooses it."""
        return number(attribute(self.element.find("target"), "busNr"))

    @property
    def cell(self) -> int | None:
        """The NUMA cell that the guest sees for the devices below an expander bus."""
        return number(text_in(self.element.find("target/node")))


def is_realtime(root: Element) -> bool:
    """Whether vCPUs of a domain have a realtime scheduler."""
    return any(scheduler.get("scheduler") in REAL_TIME for scheduler in root.iterfind("cputune/vcpusched"))


def number(text: str | None) -> int | None:
    """Return a decimal number that is not negative."""
    digits = (text or "").lstrip()
    return int(digits) if digits.isascii() and digits.isdigit() and len(digits) <= _DIGITS else None


def cpuset(text: str | None) -> frozenset[int] | None:
    """Return a set such as `0-3,^2,8`: later parts take precedence, and an exclusion is one number. None also for one
    that names the same numbers over and over, which would take long to read."""
    cpus: set[int] = set()
    named = 0
    if text is None or not text.strip():
        return None
    for part in text.split(","):
        word = part.strip()
        first, dash, last = word.removeprefix("^").partition("-")
        start, end = number(first.rstrip()), number(last if dash else first.rstrip())
        if start is None or end is None or not start <= end < MOST_CPUS or (dash and word.startswith("^")):
            return None
        named += end + 1 - start
        if named > _MOST_NAMED:
            return None
        if word.startswith("^"):
            cpus.discard(start)
        else:
            cpus.update(range(start, end + 1))
    return frozenset(cpus)


def count_of(text: str | None) -> int:
    """Return about how many numbers a set names, without reading it into one."""
    count = 0
    for part in text.split(",") if text else ():
        first, dash, last = part.partition("-")
        start, end = number(first.rstrip()), number(last.rstrip()) if dash else None
        count += end + 1 - start if start is not None and end is not None and start <= end < MOST_CPUS else 1
    return count


def shown(numbers: Iterable[int]) -> str:
    """Return a set as libvirt writes it, `0-3,8`, cut after some parts."""
    parts = format_cpu_list(numbers).split(",")
    return ",".join(parts[:_MOST_SHOWN]) + (", ..." if len(parts) > _MOST_SHOWN else "")


def scaled(text: str | None, unit: str | None, default: str = "KiB") -> int | None:
    """Return a size in bytes. `unit`: such as KiB (1024), KB (1000) or k (1024), in any case."""
    value, factor = number(text), unit_bytes(unit or default)
    return None if value is None or factor is None else value * factor


def attribute(element: Element | None, name: str) -> str | None:
    """Return an attribute's value; None if it, or the element, is missing."""
    return None if element is None else element.get(name)


def text_in(element: Element | None) -> str:
    """Return the text of an element, without the comments inside and the white space before it."""
    if element is None:
        return ""
    return "".join([element.text or "", *(child.tail or "" for child in element if not is_element(child))]).lstrip()


def size_of(element: Element | None) -> int | None:
    """Return the size that an element has as its text, such as `<memory unit='GiB'>4</memory>`, in bytes."""
    return None if element is None else scaled(text_in(element), element.get("unit"))


def total(sizes: Iterable[int | None]) -> int | None:
    """Return the sum of sizes; None if one of them is not known."""
    known = list(sizes)
    return None if None in known else sum(filter(None, known))


def plugged(root: Element) -> int:
    """Return the bytes of all memory devices, of whatever model: `<memory>` is the cells and these (libvirt)."""
    return sum(size_of(size) or 0 for size in root.iterfind("devices/memory/target/size"))


def ballooned(root: Element) -> int:
    """Return the bytes that a guest starts with, if they are less than its memory; 0 if it starts with all."""
    current, most = size_of(root.find("currentMemory")) or 0, size_of(root.find("memory")) or 0
    return current if current < most else 0


def address_of(element: Element | None) -> GuestAddress | None:
    """Return the address in the attributes of `<address>`; None if one is no number."""
    if element is None:
        return None
    parts = [any_number(element.get(name, "0")) for name in ("domain", "bus", "slot", "function")]
    known = [part for part in parts if part is not None]
    return GuestAddress(*known) if len(known) == len(parts) else None


def is_uuid(text: str) -> bool:
    """Return whether it is a UUID as libvirt reads one: 32 hexadecimal digits, wherever the dashes are."""
    digits = text.strip().replace("-", "").replace(" ", "")
    return len(digits) == 32 and _HEXADECIMAL.issuperset(digits)


def canonical_uuid(text: str) -> str:
    """Return a UUID as libvirt writes it; the text itself if it is none."""
    if not is_uuid(text):
        return text.strip()
    digits = text.replace("-", "").replace(" ", "").strip().lower()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def is_element(element: Element) -> bool:
    """Return whether it is an element, and not a comment among them."""
    tag: object = element.tag
    return isinstance(tag, str)


def is_on(text: str | None) -> bool:
    """Return whether a switch is on."""
    return text in ("on", "yes")
