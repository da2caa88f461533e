"""Basic values: PCI addresses, UUIDs, CPU lists.

May not do input or output, nor import pydantic before one of its models holds such a value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self

from vfioctl.errors import BadAddress, BadSpec, RequestError
from vfioctl.kernel.host_paths import UUID

if TYPE_CHECKING:  # listings do without
    from pydantic_core import CoreSchema

# The kernel prints a domain with at least four digits, and more for VMD and some ARM hosts.
_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{4,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})\.([0-7])", re.ASCII)
_SIZE = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(B|[KMGT]iB|[KMGT]|)", re.ASCII)
_DIGITS = 20
_UNITS = ("B", "K", "M", "G", "T")
_CANONICAL = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]", re.ASCII)  # as in nearly all of sysfs


class PciAddress(str):
    """The address of one PCI function as the kernel writes it: ``0000:41:00.0``, ``10000:01:00.0``.

    A subclass of str. Raises BadAddress if the text is no address.
    """

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
        return _schema(known_address)


class Uuid(str):
    """The UUID of a mediated device as the kernel names it, in lower case. Raises BadSpec."""

    __slots__ = ()

    def __new__(cls, text: str) -> Self:
        if not UUID.fullmatch(text):
            raise BadSpec(f"not a UUID: {text[:40]!r}", hint="write it with its dashes, as uuidgen does")
        return super().__new__(cls, text.lower())

    @property
    def order(self) -> tuple[int, str]:
        """The sort key: after all addresses."""
        return len(self), self

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        return _schema(cls)


Subject = PciAddress | Uuid
"""The subject of a change: a function or a mediated device."""


def subject(text: str) -> Subject:
    """Return the PCI address or UUID in `text`. Raises BadAddress."""
    return Uuid(text) if UUID.fullmatch(text) else PciAddress(text)


@lru_cache(maxsize=65_536)  # the same bridges and PFs are named thousands of times in one inventory
def known_address(text: str) -> PciAddress:
    """Return the PCI address in `text`, the same object each time. Raises BadAddress."""
    return PciAddress(text)


def _schema(made: Callable[[str], object]) -> CoreSchema:
    """Return how pydantic reads a value that is made from text."""
    from pydantic_core import core_schema

    def validated(text: str) -> object:
        try:
            return made(text)
        except RequestError as error:
            raise ValueError(error.message) from None

    return core_schema.no_info_after_validator_function(validated, core_schema.str_schema())


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the sorted numbers of a kernel list such as ``0-3,8`` (cpulist_parse). Raises BadSpec."""
    numbers: set[int] = set()  # no kernel has more than 8192 CPUs (NR_CPUS) or 1024 nodes
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not re.fullmatch(r"[0-9]{1,4}(-[0-9]{1,4})?", part, re.ASCII) or (dash and int(last) < int(first)):
            raise BadSpec(f"not a list of numbers: {text[:40]!r}", hint="write it as 0-3,8")
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def format_cpu_list(numbers: Iterable[int]) -> str:
    """Return the kernel's shortest list form, such as ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


def any_number(text: str | None) -> int | None:
    """Return a number as C writes it: decimal, 0x hexadecimal, or octal with a leading 0. None for other text.

    libvirt reads the parts of a PCI address so: bus='67' is 0x43. White space may be before it, as for strtoul(3).
    """
    digits = (text or "").lstrip().lower()
    if len(digits) > _DIGITS or not digits.isascii() or not digits.isalnum():
        return None
    base = 16 if digits.startswith("0x") else 8 if digits.startswith("0") else 10
    try:
        return int(digits, base)
    except ValueError:
        return None


def parse_size(text: str) -> int:
    """Return the bytes in `40GiB`, `40G` or `512MiB`. All units are binary. Raises BadSpec."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise BadSpec(f"not a size: {text[:40]!r}", hint="write it as 40GiB or 512MiB")
    return int(float(match[1]) * 1024 ** _UNITS.index(match[2].removesuffix("iB") or "B"))


class CpuSet(tuple[int, ...]):
    """CPU numbers, ascending; as text, and in JSON, the kernel's list form: ``0-3,8``."""

    __slots__ = ()

    def __str__(self) -> str:
        return format_cpu_list(self)

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema as made

        numbers = made.no_info_after_validator_function(cls, made.tuple_variable_schema(made.int_schema()))
        as_text = made.plain_serializer_function_ser_schema(str, return_schema=made.str_schema())
        return made.no_info_before_validator_function(_cpu_list_input, numbers, serialization=as_text)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: Any) -> Mapping[str, str]:
        return {"type": "string", "description": "CPU numbers as the kernel lists them: 0-3,8"}


def _cpu_list_input(value: object) -> object:
    try:
        return parse_cpu_list(value) if isinstance(value, str) else value
    except BadSpec as error:
        raise ValueError(error.message) from None
