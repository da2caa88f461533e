"""Sizes in bytes, durations, lists of CPUs, UUIDs. May import errors, and pydantic only for a model of such values."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Self

from vfioctl.errors import BadSpec, RequestError

if TYPE_CHECKING:  # listings do without
    from pydantic_core import CoreSchema

UUID_FORM = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
UUID = re.compile(UUID_FORM, re.ASCII | re.IGNORECASE)
_PART_OF_UUID = re.compile(r"[0-9a-f][0-9a-f-]{3,35}", re.ASCII | re.IGNORECASE)
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,3})?) ?([a-z]*)", re.ASCII | re.IGNORECASE)
_DURATION_PART = re.compile(r"([0-9]{1,6}(?:\.[0-9]{1,3})?)([smhdw])", re.ASCII)
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_LONGEST = 5200 * 604800
"""A hundred years: what is added to the present time stays a time."""
_CPU_RANGE = re.compile(r"[0-9]{1,4}(-[0-9]{1,4})?", re.ASCII)
_MASK_WORD = re.compile(r"[0-9a-fA-F]{1,8}", re.ASCII)
_POWERS = {letter: power for power, letter in enumerate("kmgtpe", 1)}
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB")


def is_uuid_begun(word: str) -> bool:
    """Whether a word is a UUID, or four characters or more of its beginning."""
    return _PART_OF_UUID.fullmatch(word) is not None


def unit_bytes(unit: str) -> int | None:
    """Return the bytes in KiB, K (1024), KB (1000), ... in any case; else None. Source: libvirt's virScaleInteger."""
    letters = unit.lower()
    if letters in ("b", "byte", "bytes"):
        return 1
    power, base = _POWERS.get(letters[:1]), {"": 1024, "ib": 1024, "b": 1000}.get(letters[1:])
    return base**power if power and base else None


def parse_size(text: str) -> int:
    """Return the bytes in `40GiB`, `40G`, `40gb` or `512 MiB`. Raises BadSpec for 0, and without a unit."""
    match = _SIZE.fullmatch(text)
    unit = unit_bytes(match[2]) if match and match[2] else None
    if match is None or unit is None:
        hint = "write it as 40GiB or 40G (both 1024), or as 40GB (1000); capitals do not matter"
        raise BadSpec(f"not a size: {text[:40]!r}", hint=hint)
    size = int(match[1]) * unit if match[1].isdecimal() else int(float(match[1]) * unit)
    if not size:
        raise BadSpec(f"a size of more than 0 is needed: {text[:40]!r}", hint="leave it out for none")
    return size


def format_size(count: int) -> str:
    """Return a number of bytes in the largest binary unit that it reaches, with at most one decimal: `79.6 GiB`."""
    amount, units = float(count), list(_BINARY)
    while amount >= 1024 and len(units) > 1:
        amount, units = amount / 1024, units[1:]
    return f"{amount:.1f}".removesuffix(".0") + f" {units[0]}"


def exact_size(count: int) -> str:
    """Return a number of bytes in the largest binary unit that divides it: an error names a size without rounding."""
    power = next((power for power in (4, 3, 2, 1) if count and count % 1024**power == 0), 0)
    return f"{count // 1024**power} {_BINARY[power]}"


def parse_duration(text: str) -> float:
    """Return the seconds in `90s`, `1h30m`, `1d` or `1w`: numbers with units, the largest first, each unit once.

    Raises BadSpec for a number without a unit. Source: systemd.time(7), of which this is a part."""
    parts = _DURATION_PART.findall(text.strip().lower())
    units = [_SECONDS[unit] for _, unit in parts]
    if not parts or "".join(map("".join, parts)) != text.strip().lower() or units != sorted(set(units), reverse=True):
        raise BadSpec(f"not a duration: {text[:40]!r}", hint="write it as 60s, 5m, 1h30m, 1d or 1w")
    seconds = float(sum(float(number) * unit for (number, _), unit in zip(parts, units, strict=True)))
    if seconds > _LONGEST:
        raise BadSpec(f"a duration of at most 5200w is needed: {text[:40]!r}", hint="shorten it")
    return seconds


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """Return the sorted numbers of a kernel list such as ``0-3,8`` (cpulist_parse). Raises BadSpec."""
    numbers: set[int] = set()  # no kernel has more than 8192 CPUs (NR_CPUS) or 1024 nodes
    for part in filter(None, text.strip().split(",")):
        first, dash, last = part.partition("-")
        if not _CPU_RANGE.fullmatch(part) or (dash and int(last) < int(first)):
            raise BadSpec(f"not a list of numbers: {text[:40]!r}", hint="write it as 0-3,8")
        numbers.update(range(int(first), int(last or first) + 1))
    return tuple(sorted(numbers))


def parse_cpu_mask(text: str) -> tuple[int, ...]:
    """Return the sorted numbers of a kernel mask such as ``00000000,0000ffff`` (bitmap_parse). Raises BadSpec."""
    words = text.strip().split(",")
    if len(words) > 256 or not all(_MASK_WORD.fullmatch(word) for word in words):
        raise BadSpec(f"not a mask of CPUs: {text[:40]!r}", hint="write it as 00000000,0000ffff")
    mask = int("".join(word.rjust(8, "0") for word in words), 16)
    return tuple(number for number in range(mask.bit_length()) if mask >> number & 1)


def format_cpu_list(numbers: Iterable[int]) -> str:
    """Return the kernel's shortest list form, such as ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in runs)


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
        return text_schema(cls)


def text_schema(made: Callable[[str], object]) -> CoreSchema:
    """Return how pydantic reads a value that `made` makes of text."""
    from pydantic_core import core_schema

    def validated(text: str) -> object:
        try:
            return made(text)
        except RequestError as error:
            raise ValueError(error.message) from None

    return core_schema.no_info_after_validator_function(validated, core_schema.str_schema())
