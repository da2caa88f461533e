"""Compares a document with a JSON schema, as far as the generated schemas go, and knows which command has which."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from docs.documents import OUTPUTS

REFERENCE = Path(__file__).resolve().parents[1] / "docs/reference"
_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "null": (type(None),),
}
_WORDS = {"title", "description", "default", "$defs", "properties", "required", "additionalProperties", "type", "enum"}
_WORDS |= {"items", "prefixItems", "minItems", "maxItems", "minLength", "maxLength", "pattern", "minimum", "maximum"}
_WORDS |= {"anyOf", "$ref"}


def command_of(words: Sequence[str]) -> str:
    """The command of a command line; empty if it has none with a document."""
    plain = [word for word in words if not word.startswith("-")]
    return next((name for name in (" ".join(plain[:2]), *plain[:1]) if name in OUTPUTS), "")


def problems_of(document: object, command: str) -> list[str]:
    """Where a document differs from what the command may print: the schema that it is nearest to."""
    failed = isinstance(document, dict) and set(document) == {"error"}
    return min((schema_problems(document, name) for name in (["error"] if failed else OUTPUTS[command])), key=len)


def schema_problems(document: object, name: str) -> list[str]:
    """Where a document differs from `docs/reference/NAME.schema.json`."""
    schema = _schema(name)
    return list(_problems(document, schema, schema.get("$defs", {}), name))


@cache
def _schema(name: str) -> Any:
    return json.loads((REFERENCE / f"{name}.schema.json").read_text())


def _problems(value: Any, schema: Any, known: Any, place: str) -> Iterator[str]:
    assert schema.keys() <= _WORDS, f"{place}: this module does not know {schema.keys() - _WORDS}"
    if "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        if all(list(_problems(value, choice, known, place)) for choice in schema["anyOf"]):
            yield f"{place} is none of what it may be"
        return
    if "type" in schema and not _is(value, schema["type"]):
        yield f"{place} is no {schema['type']}"
        return
    yield from _problems_inside(value, schema, known, place)


def _problems_inside(value: Any, schema: Any, known: Any, place: str) -> Iterator[str]:
    if value not in schema.get("enum", [value]):
        yield f"{place} is {value!r}"
    if isinstance(value, dict):
        yield from _problems_of_object(value, schema, known, place)
    elif isinstance(value, list):
        yield from _problems_of_list(value, schema, known, place)
    elif isinstance(value, str):
        yield from _out_of_range(len(value), schema, "Length", place)
        if not re.search(schema.get("pattern", ""), value):
            yield f"{place} does not match {schema['pattern']}"
    elif isinstance(value, int | float):
        yield from _out_of_range(value, schema, "imum", place)


def _is(value: object, kind: str) -> bool:
    return isinstance(value, _TYPES[kind]) and (kind == "boolean" or not isinstance(value, bool))


def _out_of_range(size: float, schema: Any, suffix: str, place: str) -> Iterator[str]:
    if not schema.get(f"min{suffix}", size) <= size <= schema.get(f"max{suffix}", size):
        yield f"{place} is out of range"


def _problems_of_list(value: list[Any], schema: Any, known: Any, place: str) -> Iterator[str]:
    yield from _out_of_range(len(value), schema, "Items", place)
    first = schema.get("prefixItems", [])
    for number, item in enumerate(value):
        expected = first[number] if number < len(first) else schema.get("items", {})
        yield from _problems(item, expected, known, f"{place}[{number}]")


def _problems_of_object(value: Any, schema: Any, known: Any, place: str) -> Iterator[str]:
    named, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    yield from (f"{place}.{key} is missing" for key in schema.get("required", ()) if key not in value)
    for key, item in value.items():
        if key not in named and more is False:
            yield f"{place}.{key} is not known"
        yield from _problems(item, named.get(key, more if isinstance(more, dict) else {}), known, f"{place}.{key}")
