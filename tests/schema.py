"""Compares a document with a JSON schema, as far as the generated schemas go."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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


def schema_problems(document: object, name: str) -> list[str]:
    """Where a document differs from `docs/reference/NAME.schema.json`."""
    schema = json.loads((REFERENCE / f"{name}.schema.json").read_text())
    return list(_problems(document, schema, schema.get("$defs", {}), name))


def _problems(value: Any, schema: Any, known: Any, place: str) -> Iterator[str]:
    if "$ref" in schema:
        schema = known[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        if all(list(_problems(value, each, known, place)) for each in schema["anyOf"]):
            yield f"{place} is none of what it may be"
        return
    if "type" in schema and not isinstance(value, _TYPES[schema["type"]]):
        yield f"{place} is no {schema['type']}"
        return
    if value not in schema.get("enum", [value]):
        yield f"{place} is {value!r}"
    if isinstance(value, dict):
        yield from _problems_of_object(value, schema, known, place)
    if isinstance(value, list):
        for number, each in enumerate(value):
            yield from _problems(each, schema.get("items", {}), known, f"{place}[{number}]")


def _problems_of_object(value: Any, schema: Any, known: Any, place: str) -> Iterator[str]:
    named, more = schema.get("properties", {}), schema.get("additionalProperties", True)
    yield from (f"{place}.{key} is missing" for key in schema.get("required", ()) if key not in value)
    for key, each in value.items():
        if key not in named and more is False:
            yield f"{place}.{key} is not known"
        yield from _problems(each, named.get(key, more if isinstance(more, dict) else {}), known, f"{place}.{key}")
