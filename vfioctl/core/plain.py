"""`plain`, which makes the classes of what a listing shows. May not do input or output, nor import pydantic."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def plain(kind: type[T]) -> type[T]:
    """Make a dataclass whose values are not to be changed: use `dataclasses.replace`.

    mypy sees to that, not Python: a listing makes tens of thousands, and a frozen dataclass takes three times as long.
    """
    return dataclass(slots=True, kw_only=True)(kind)
