"""Writes documents, which are made of dataclasses and pydantic models, as JSON. May not choose what they hold.

`json.dumps` takes twice as long for ten thousand functions: it calls back for each dataclass, and writes the names of
its fields anew each time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import Field, fields, is_dataclass
from json.encoder import encode_basestring as _string
from operator import attrgetter
from pathlib import PurePath
from typing import Any

_Writer = Callable[[Any], str]
_MANY = 500
"""Values that are written at once: the text of ten thousand functions takes as long to copy as to make."""


def document_text(document: object) -> str:
    """Return the document as JSON. The `alias` in the metadata of a field is its name there."""
    return "".join(document_pieces(document))


def document_pieces(document: object) -> Iterator[str]:
    """Yield the text of `document_text` in pieces, so that a long one need not be in memory as a whole."""
    if not is_dataclass(document):
        yield _text(document)
        return
    before = "{"
    for field in fields(document):
        yield f"{before}{_name(field)}:"
        yield from _value_pieces(getattr(document, field.name))
        before = ","
    yield "}"


def _value_pieces(value: object) -> Iterator[str]:
    if type(value) is not tuple or len(value) <= _MANY:
        yield _text(value)
        return
    before = "["
    for at in range(0, len(value), _MANY):
        yield before + _sequence(value[at : at + _MANY])[1:-1]
        before = ","
    yield "]"


def _name(field: Field[Any]) -> str:
    return _string(field.metadata.get("alias", field.name))


def indented_text(text: str) -> str:
    """Return a JSON document with a line for each value."""
    return json.dumps(json.loads(text), indent=2, ensure_ascii=False)


def _text(value: object) -> str:
    return _WRITERS[type(value)](value)


def _sequence(values: Sequence[object]) -> str:
    return f"[{','.join([_WRITERS[type(value)](value) for value in values])}]" if values else "[]"


def _mapping(values: dict[object, object]) -> str:
    return f"{{{','.join([f'{_string(str(key))}:{_text(value)}' for key, value in values.items()])}}}"


def _writer(kind: type) -> _Writer:
    """Return what writes a value of a class: as text if it is a path or has a `__str__`, or its fields."""
    if issubclass(kind, str):
        return _string
    if issubclass(kind, PurePath) or (issubclass(kind, tuple) and "__str__" in vars(kind)):  # as a set of CPUs has
        return lambda value: _string(str(value))
    if hasattr(kind, "model_dump_json"):
        return lambda model: str(model.model_dump_json())
    if not is_dataclass(kind):
        raise TypeError(f"not serializable as JSON: {kind.__name__}")
    form = f"{{{','.join(f'{_name(field)}:%s' for field in fields(kind))}}}"
    # with the class as one more, because attrgetter returns a tuple only for several
    read = attrgetter(*(field.name for field in fields(kind)), "__class__")

    def write(document: object) -> str:
        *values, _ = read(document)
        return form % tuple(["null" if value is None else _WRITERS[type(value)](value) for value in values])

    return write


class _Writers(dict[type, _Writer]):
    def __missing__(self, kind: type) -> _Writer:
        self[kind] = made = _writer(kind)
        return made


_PLAIN: dict[type, _Writer] = {
    bool: lambda value: "true" if value else "false",
    int: repr,
    float: repr,
    str: _string,
    type(None): lambda _: "null",
    tuple: _sequence,
    list: _sequence,
    dict: _mapping,
}
_WRITERS = _Writers(_PLAIN)
