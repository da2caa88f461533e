"""`record_class` and `value_class`, which make most classes of values. May not do I/O, nor import pydantic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record_class(kind: type[T]) -> type[T]:
    """Make a dataclass whose values are not to be changed: use `dataclasses.replace`.

    mypy sees to that, not Python: a listing makes tens of thousands, and a frozen dataclass takes three times as long;
    making the class takes twice as long, which every command would wait for."""
    return dataclass(slots=True, kw_only=True)(kind)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_class(kind: type[T]) -> type[T]:
    """Make such a dataclass with fields by position, and hashable. It may have cached properties."""
    return dataclass(unsafe_hash=True)(kind)
