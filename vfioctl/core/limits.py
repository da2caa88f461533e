"""Limits of a dataclass's fields, as annotations: `gpus: Annotated[int, Whole(0, 1024)]`. May not do input or output.

pydantic reads them, for documents (`read_document`) and their JSON schemas. Short input, such as options, is read
without it (`read_words`), by the limit's `read`, which may refuse what pydantic takes: importing pydantic and building
a model takes longer than most commands work."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from enum import Enum
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_args, get_type_hints

if TYPE_CHECKING:
    import re

    from pydantic import TypeAdapter
    from pydantic_core import CoreSchema

T = TypeVar("T")
FORBID: Mapping[str, str] = {"extra": "forbid"}
"""A dataclass's `__pydantic_config__`: no other fields are known."""


class Whole:
    """A whole number in a range. `strict`: and no text that is one."""

    def __init__(self, least: int, most: int | None = None, *, strict: bool = False) -> None:
        self._least, self._most, self._strict = least, most, strict

    def read(self, value: Any) -> int:
        if isinstance(value, str) and not self._strict and value.isascii() and value.isdecimal() and len(value) < 20:
            value = int(value)
        if type(value) is not int:
            raise ValueError("must be a whole number")
        if value < self._least:
            raise ValueError(f"must be at least {self._least}")
        if self._most is not None and value > self._most:
            raise ValueError(f"must be at most {self._most}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        schema = core_schema.int_schema(ge=self._least, le=self._most, strict=self._strict)
        return schema if self._strict else core_schema.no_info_before_validator_function(_no_truth, schema)


def _no_truth(value: object) -> object:
    """Refuse true and false, which Python counts as 1 and 0."""
    if isinstance(value, bool):
        raise ValueError("a whole number is needed")  # noqa: TRY004 - pydantic takes only this for a refusal
    return value


class Text:
    """A text of a form and of bounded length, in characters. `rule`: what it must do, as `begin with a letter`."""

    def __init__(self, most: int, *, least: int = 0, form: re.Pattern[str] | None = None, rule: str = "") -> None:
        self._most, self._least, self._form, self._rule = most, least, form, rule

    def read(self, value: Any) -> str:
        if not (isinstance(value, str) and self._least <= len(value) <= self._most):
            raise ValueError(f"must have {self._least} to {self._most} characters")
        if self._form and not self._form.fullmatch(value):
            raise ValueError(f"must match {self._form.pattern}")
        return value

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        form = self._form.pattern if self._form else None
        schema = core_schema.str_schema(pattern=form, min_length=self._least or None, max_length=self._most)
        if not self._rule:
            return schema
        ruled = core_schema.custom_error_schema(
            schema, custom_error_type="form", custom_error_message="{rule}", custom_error_context={"rule": self._rule}
        )
        return core_schema.no_info_before_validator_function(_only_text, ruled)


def _only_text(value: object) -> object:
    """Refuse what is no text, which has no form either."""
    if isinstance(value, str):
        return value
    from pydantic_core import PydanticKnownError

    raise PydanticKnownError("string_type")


class Several:
    """The maximum length of a tuple, as annotation; its items may have limits of their own."""

    def __init__(self, most: int) -> None:
        self._most = most

    def read(self, value: Any, item: Callable[[Any], object] = str) -> tuple[object, ...]:
        if not isinstance(value, list | tuple) or len(value) > self._most:
            raise ValueError(f"must have at most {self._most} items")
        return tuple(item(element) for element in value)

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        schema = handler(source)
        schema["max_length"] = self._most
        return cast("CoreSchema", schema)


class Checked:
    """A text that a function reads, which raises ValueError."""

    def __init__(self, read: Callable[[str], object]) -> None:
        self.read = read

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self.read, core_schema.str_schema())


class Strict:
    """Of exactly this type: no text or number that looks like one."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        schema = handler(source)
        schema["strict"] = True
        return cast("CoreSchema", schema)


def read_document(kind: type[T], content: object) -> T:
    """Return a dataclass from the content of a document. Raises pydantic's ValidationError, see `first_problem`."""
    unchecked: Any = kind  # mypy takes no type for hashable
    return cast("T", _adapter(unchecked).validate_python(content))


def json_of(value: object) -> Any:
    """Return the JSON form of a dataclass."""
    kind: Any = type(value)
    return _adapter(kind).dump_python(value, mode="json")


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def read_words(kind: type[T], words: Mapping[str, Any]) -> T | None:
    """Return a dataclass from options, without pydantic; None for what is not plain, which `read_document` judges."""
    unchecked: Any = kind  # mypy takes no type for hashable
    limits, values = _limits(unchecked), {}
    for name, value in words.items():
        if name not in limits:
            return None
        try:
            values[name] = limits[name](value)
        except (ValueError, TypeError):
            return None
    try:
        return kind(**values)
    except TypeError:  # a field without default is missing
        return None


@cache
def _limits(kind: Any) -> Mapping[str, Callable[[Any], object]]:
    """The readers of the fields that have a limit, and of those that are an enumeration."""
    hints = get_type_hints(kind, include_extras=True)
    limits = {field.name: _reader(hints[field.name]) for field in fields(kind)}
    return {name: reader for name, reader in limits.items() if reader}


def _reader(hint: Any) -> Callable[[Any], object] | None:
    kind = getattr(hint, "__origin__", hint)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind
    limit: Any = next((metadata for metadata in getattr(hint, "__metadata__", ()) if hasattr(metadata, "read")), None)
    if not isinstance(limit, Several):
        return limit.read if limit else None
    item = _reader(get_args(get_args(hint)[0])[0]) or _text
    return lambda value: limit.read(value, item)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value
